"""Medians, their intervals, and the answer that they allow; see docs/timing.md for the figures.

An interval of a median is that of its order statistics, exact for independent rounds whatever the
distribution, interpolated between ranks (Hettmansperger and Sheather, Statistics and Probability
Letters 4, 1986), and widened where neighbouring rounds resemble each other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernelproof.types import Comparison, Series

# A difference of less than this is none. FASTER and SLOWER need a middle beyond it.
_CLEAR = 0.01
# SAME: the whole interval is so close to 1.
_SAME = 0.015
# Of the interval that is called one of 95 %: a run ends where it looks narrow, which costs a share;
# benchmarks/timing_answers.py measures what is left.
_LEVEL = 0.965
# A first look at fewer rounds than these has no interval but their range.
_FEWEST = 6
_MOST_CORRELATION = 0.8
# Half widths of the interval that will do, by how far the ratio is from 1: fine where the answer
# hangs on it, coarse where it does not.
_FAR = math.log(3)
_TARGETS = ((0.05, 0.005), (_FAR, 0.01), (math.inf, 0.05))

_Array = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A ratio (baseline over candidate), its 95 % interval, and the answer, which also looks at
    the 99 % interval ``lowest`` to ``highest``."""

    middle: float
    low: float
    high: float
    answer: Comparison
    lowest: float
    highest: float

    @property
    def half_width(self) -> float:
        """Of the 95 % interval, as a share of the ratio."""
        return math.log(self.high / self.low) / 2

    @property
    def far(self) -> bool:
        """Whether one takes more than three times as long: no answer hangs on the figure."""
        return abs(math.log(self.middle)) > _FAR

    @property
    def narrow(self) -> bool:
        """Whether more rounds would tell nothing that anybody asks for. Only widths decide, where
        the answer is near: to stop at a wanted answer would favour it."""
        distance = abs(math.log(self.middle))
        target = next(width for limit, width in _TARGETS if distance <= limit)
        wide = math.log(self.highest / self.lowest) / 2
        return self.half_width < target and wide < 2 * target


def series(samples: Sequence[float], rounds: Sequence[int]) -> Series:
    """Median and the 95 % interval of the median; ``rounds`` says in which round each sample was
    taken, and rounds are what counts as independent. Seconds."""
    values = np.asarray(samples, dtype=np.float64)
    median = float(np.median(values))
    middles = np.asarray(list(_by_round(samples, rounds).values()))
    low, high = _interval_of_times(middles if len(middles) >= _FEWEST else values, 0.95)
    return Series(
        samples=tuple(float(v) for v in values),
        rounds=tuple(rounds),
        median=median,
        low=min(low, median),
        high=max(high, median),
    )


def ratio(baseline: Series, candidate: Series, without: Collection[int] = ()) -> Estimate:
    """Baseline time over candidate time with its 95 % interval, and the answer.

    Rounds are the unit: both were timed once in each, moments apart, so that a change of clock
    speed between rounds cancels.

    Args:
        without: rounds that do not count.

    Raises:
        ValueError: the two have no round in common.
    """
    theirs = _by_round(baseline.samples, baseline.rounds)
    mine = _by_round(candidate.samples, candidate.rounds)
    return estimate([theirs[r] / mine[r] for r in sorted(theirs.keys() & mine.keys() - {*without})])


def estimate(ratios: Sequence[float]) -> Estimate:
    """The middle of ``ratios``, one a round in the order of the rounds, and what it says."""
    if not len(ratios):
        raise ValueError("no round in which both were timed")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    low, high = _interval(logs, _LEVEL)
    lowest, highest = (math.exp(end) for end in _interval(logs, 0.99))
    middle = math.exp(float(np.median(logs)))
    ends = math.exp(low), math.exp(high)
    answer = _answer(middle, *ends, lowest, highest)
    return Estimate(middle, *ends, answer, lowest, highest)


def _answer(middle: float, low: float, high: float, lowest: float, highest: float) -> Comparison:
    if lowest > 1 and middle > 1 + _CLEAR:
        return "FASTER"
    if highest < 1 and middle < 1 - _CLEAR:
        return "SLOWER"
    if low > 1 - _SAME and high < 1 + _SAME:
        return "SAME"
    return "UNCLEAR"


def _interval(values: _Array, level: float) -> tuple[float, float]:
    """Of the median of the distribution that ``values``, in the order of time, come from."""
    ordered = np.sort(values)
    count = len(ordered)
    if count < _FEWEST:
        return float(ordered[0]), float(ordered[-1])
    rank, inward = _ranks(count, level)
    low = (1 - inward) * ordered[rank - 1] + inward * ordered[rank]
    high = (1 - inward) * ordered[count - rank] + inward * ordered[count - rank - 1]
    middle, factor = float(np.median(ordered)), _widening(values)
    return middle - factor * (middle - float(low)), middle + factor * (float(high) - middle)


def _interval_of_times(values: _Array, level: float) -> tuple[float, float]:
    """Of their logarithms, as ratios have it: widened, its lower end stays above zero. Plain where
    it is a range, and of a clock that told a time of zero."""
    if len(values) < _FEWEST or not np.all(values > 0):
        return _interval(values, level)
    low, high = _interval(np.log(values), level)
    return math.exp(low), math.exp(high)


@functools.cache
def _ranks(count: int, level: float) -> tuple[int, float]:
    """The rank (from 1) of the order statistic that is the lower end of a ``level`` interval of
    the median of ``count`` values, and which share of the way to the next one it lies inward."""
    tails = np.cumsum([math.comb(count, k) for k in range(count // 2)], dtype=object)
    covered = [1 - 2 * int(tail) / 2**count for tail in tails]
    rank = sum(share >= level for share in covered)
    if rank == 0:
        return 1, 0.0
    if rank == len(covered):
        return rank, 0.0
    here, inside = covered[rank - 1], covered[rank]
    part = (here - level) / (here - inside)
    return rank, (count - rank) * part / (rank + (count - 2 * rank) * part)


def _widening(values: _Array) -> float:
    """By how much serial correlation widens an interval: sqrt((1 + r) / (1 - r)) for r between
    neighbours, that of a first-order autoregression (Bartlett 1946). r is taken from values drawn
    in to three median deviations, since one outlier would hide it, and has its bias of
    -(1 + 3 r) / n added (Kendall 1954)."""
    off = values - np.median(values)
    limit = 3 * float(np.median(np.abs(off)))
    off = np.clip(off, -limit, limit)
    power = float(np.sum(off * off))
    if power == 0:
        return 1.0
    found = float(np.sum(off[1:] * off[:-1])) / power
    found += (1 + 3 * max(found, 0.0)) / len(values)
    found = min(max(found, 0.0), _MOST_CORRELATION)
    return math.sqrt((1 + found) / (1 - found))


def _by_round(samples: Sequence[float], rounds: Sequence[int]) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for sample, number in zip(samples, rounds, strict=True):
        groups.setdefault(number, []).append(sample)
    return {number: float(np.median(group)) for number, group in groups.items()}
