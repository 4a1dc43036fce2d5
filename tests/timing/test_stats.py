"""Intervals and answers."""

from __future__ import annotations

import numpy as np
import pytest

from kernelproof.timing.stats import ratio, series


def draw(median: float, spread: float, seed: int, count: int = 40):
    values = median * (1 + spread * np.random.default_rng(seed).standard_normal(count))
    return series(values, range(count))


def test_a_series_keeps_its_samples_and_brackets_its_median() -> None:
    one = draw(1e-3, 0.05, 0)
    assert len(one.samples) == 40
    assert one.low <= one.median <= one.high
    assert one.high / one.low < 1.1


def test_few_samples_give_their_whole_range() -> None:
    one = series([1.0, 2.0, 3.0], [0, 1, 2])
    assert (one.low, one.median, one.high) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("baseline", "spread", "answer"),
    [(2.0, 0.02, "FASTER"), (0.5, 0.02, "SLOWER"), (1.0, 0.002, "SAME"), (1.02, 0.3, "UNCLEAR")],
)
def test_answers(baseline: float, spread: float, answer: str) -> None:
    middle, low, high, got = ratio(draw(baseline, spread, 1), draw(1.0, spread, 2))
    assert low <= middle <= high
    assert got == answer


def test_the_interval_covers_the_truth_most_of_the_time() -> None:
    hits = 0
    for seed in range(200):
        one = draw(1.0, 0.1, seed)
        hits += one.low <= 1.0 <= one.high
    assert hits >= 180


def test_a_drift_that_hits_both_cancels() -> None:
    drift = 1 + np.linspace(0, 1, 30)
    noise = 1 + 0.002 * np.random.default_rng(0).standard_normal((2, 30))
    theirs, mine = series(drift * 1.1 * noise[0], range(30)), series(drift * noise[1], range(30))
    middle, low, high, got = ratio(theirs, mine)
    assert got == "FASTER" and 1.09 < low < middle < high < 1.11
