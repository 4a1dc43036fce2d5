"""Intervals and answers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from kernelproof.timing.stats import _ranks, estimate, ratio, series


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


def test_no_interval_of_times_reaches_below_zero() -> None:
    # On a busy machine calls are quick for some rounds and slow for the next ones, which widens.
    one = series([1e-4] * 6 + [3e-2] * 6, range(12))
    assert 0 < one.low <= one.median <= one.high


@pytest.mark.parametrize(
    ("baseline", "spread", "answer"),
    [(2.0, 0.02, "FASTER"), (0.5, 0.02, "SLOWER"), (1.0, 0.002, "SAME"), (1.02, 0.3, "UNCLEAR")],
)
def test_answers(baseline: float, spread: float, answer: str) -> None:
    got = ratio(draw(baseline, spread, 1), draw(1.0, spread, 2))
    assert got.lowest <= got.low <= got.middle <= got.high <= got.highest
    assert got.answer == answer


def test_the_interval_covers_the_truth_most_of_the_time() -> None:
    hits = 0
    for seed in range(200):
        one = draw(1.0, 0.1, seed)
        hits += one.low <= 1.0 <= one.high
    assert 183 <= hits <= 199


def test_a_drift_that_hits_both_cancels() -> None:
    drift = 1 + np.linspace(0, 1, 30)
    noise = 1 + 0.002 * np.random.default_rng(0).standard_normal((2, 30))
    theirs, mine = series(drift * 1.1 * noise[0], range(30)), series(drift * noise[1], range(30))
    got = ratio(theirs, mine)
    assert got.answer == "FASTER" and 1.09 < got.low < got.middle < got.high < 1.11


def test_rounds_can_be_left_out() -> None:
    theirs, mine = series([2.0] * 8 + [9.0] * 8, range(16)), series([1.0] * 16, range(16))
    assert ratio(theirs, mine, without=range(8, 16)).middle == 2.0
    with pytest.raises(ValueError, match="no round"):
        ratio(theirs, mine, without=range(16))


def test_the_rounds_are_what_counts_not_the_readings_in_them() -> None:
    # One round of many readings must not make the interval look narrow.
    rng = np.random.default_rng(3)
    offsets = np.repeat(1 + 0.1 * rng.standard_normal(10), 100)
    many = series(offsets * (1 + 1e-4 * rng.standard_normal(1000)), [i // 100 for i in range(1000)])
    assert many.high - many.low > 0.05


@pytest.mark.parametrize("count", [6, 7, 10, 11, 25])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_ranks_are_those_of_the_binomial_distribution(count: int, level: float) -> None:
    rank, inward = _ranks(count, level)

    def covered(rank: int) -> float:
        return 1 - 2 * sum(math.comb(count, k) for k in range(rank)) / 2**count

    assert 0 <= inward < 1
    if covered(1) >= level:
        assert covered(rank) >= level > covered(rank + 1)
    else:
        assert (rank, inward) == (1, 0.0)


def correlated(rng: np.random.Generator, count: int, r: float, spread: float) -> np.ndarray:
    """A first-order autoregression with the standard deviation ``spread``."""
    noise = spread * rng.standard_normal(count)
    for i in range(1, count):
        noise[i] = r * noise[i - 1] + math.sqrt(1 - r * r) * noise[i]
    return noise


def run(
    rng: np.random.Generator, true: float, spread: float, r: float = 0.0, outliers: float = 0.0
):
    """As the protocol does it: look at 10, 14, 20.. rounds, stop when the interval is narrow."""
    count = 160
    times = np.exp([correlated(rng, count, r, spread) for _ in range(2)])
    # Heat slows both, and something else now and then only one of them.
    times *= 1 + 0.1 * np.linspace(0, 1, count)
    times[rng.random((2, count)) < outliers] *= 1.2
    ratios = true * times[0] / times[1]
    for look in (10, 14, 20, 28, 39, 55, 77, 108, count):
        found = estimate(ratios[:look])
        if found.narrow:
            break
    return found


CONDITIONS = pytest.mark.parametrize(
    ("r", "outliers"),
    [(0.0, 0.0), (0.3, 0.0), (0.0, 0.05)],
    ids=["plain", "correlated", "outliers"],
)


@CONDITIONS
def test_the_same_against_itself_is_the_same(r: float, outliers: float) -> None:
    rng = np.random.default_rng(10)
    found = [run(rng, 1.0, 0.005, r, outliers) for _ in range(200)]
    assert sum(one.answer == "SAME" for one in found) >= 190
    assert sum(one.answer in ("FASTER", "SLOWER") for one in found) <= 2
    # 95 % for independent rounds; what is left of correlation costs a little.
    covered = sum(one.low <= 1.0 <= one.high for one in found)
    assert covered >= (186 if r == 0 else 176)


@CONDITIONS
def test_two_percent_slower_is_slower(r: float, outliers: float) -> None:
    rng = np.random.default_rng(11)
    found = [run(rng, 0.98, 0.005, r, outliers) for _ in range(200)]
    assert sum(one.answer == "SLOWER" for one in found) >= 190
    # Where to stop is chosen by the width, and favours neither side.
    middles = np.median([one.middle for one in found])
    assert abs(middles - 0.98) < 0.001


def test_noise_makes_unclear_and_not_faster() -> None:
    rng = np.random.default_rng(12)
    found = [run(rng, 1.0, 0.06) for _ in range(200)]
    assert sum(one.answer in ("FASTER", "SLOWER") for one in found) <= 4
    assert sum(one.answer == "UNCLEAR" for one in found) >= 150


def test_correlated_rounds_widen_the_interval() -> None:
    rng = np.random.default_rng(13)
    smooth = np.exp(correlated(rng, 100, 0.7, 0.01))
    apart = estimate(rng.permutation(smooth)).half_width
    assert estimate(smooth).half_width > 1.5 * apart


def test_what_is_far_from_one_need_not_be_known_as_well() -> None:
    rng = np.random.default_rng(14)
    noise = np.exp(0.01 * rng.standard_normal(12))
    assert not estimate(noise).narrow
    assert estimate(50 * noise).narrow
