"""Medians, bootstrap intervals and the answer that they allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernelproof.types import Comparison, Series

_RESAMPLES = 2000
_SAME = 0.02  # two times within 2 % of each other count as the same


def series(samples: Sequence[float], rounds: Sequence[int]) -> Series:
    """Median and 95 % bootstrap interval of the median; ``rounds`` says in which round each sample
    was taken. Seconds."""
    values = np.asarray(samples, dtype=np.float64)
    low, high = _interval(values, np.random.default_rng(0))
    return Series(
        samples=tuple(float(v) for v in values),
        rounds=tuple(rounds),
        median=float(np.median(values)),
        low=low,
        high=high,
    )


def ratio(baseline: Series, candidate: Series) -> tuple[float, float, float, Comparison]:
    """Baseline time over candidate time with its 95 % interval, and the answer.

    Rounds are the unit: both were timed once in each, moments apart, so that a change of clock
    speed between rounds cancels.
    """
    theirs, mine = _by_round(baseline), _by_round(candidate)
    both = sorted(theirs.keys() & mine.keys())
    ratios = np.asarray([theirs[r] / mine[r] for r in both])
    middle = float(np.median(ratios))
    low, high = _interval(ratios, np.random.default_rng(0))
    return middle, low, high, _answer(low, high)


def _answer(low: float, high: float) -> Comparison:
    if low > 1 and high > 1 + _SAME:
        return "FASTER"
    if high < 1 and low < 1 - _SAME:
        return "SLOWER"
    if low > 1 - _SAME and high < 1 + _SAME:
        return "SAME"
    return "UNCLEAR"


def _interval(values: np.ndarray, draw: np.random.Generator) -> tuple[float, float]:
    if len(values) < 2:
        return float(values.min()), float(values.max())
    # Few samples give a narrow percentile bootstrap; their whole range is the honest interval.
    if len(values) < 6:
        return float(values.min()), float(values.max())
    picks = draw.integers(0, len(values), size=(_RESAMPLES, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def _by_round(one: Series) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for sample, number in zip(one.samples, one.rounds, strict=True):
        groups.setdefault(number, []).append(sample)
    return {number: float(np.median(group)) for number, group in groups.items()}
