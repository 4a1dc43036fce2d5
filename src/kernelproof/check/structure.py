"""Structure of the error: bugs below the rounding noise.

A tolerance cannot see a wrong formula whose effect is smaller than one rounding. Rounding errors
are nearly uncorrelated with the result, and a wrong formula's are not. So the signed error, less
the rounding of the output that nobody can avoid, is regressed on the truth, pooled over the runs of
a case; the reference's own error is regressed in the same way, and `budget` says how much of a
slope an honest computation can have.

The estimates are weighted least squares through the origin with cluster-robust standard errors:
errors that share a row, a column, a head or a whole run may be correlated at will, and the largest
of the standard errors over these groupings counts (White 1980; Liang and Zeger 1986, "Longitudinal
data analysis using generalized linear models", for the sums over clusters).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

import torch

from kernelproof.check import budget
from kernelproof.check.truncation import Truncation
from kernelproof.types import Outcome

# Fewer groups than this say nothing about their spread; the standard error leaves them out, and a
# candidate is not called wrong before there are as many runs.
MIN_GROUPS = 6
# The draws in effect that it takes to know the noise of one index of many.
_DRAWS_PER_INDEX = 16


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A slope: relative, so 1e-3 means that the output is 0.1 % too large.

    ``error``: its standard error. ``spread``: standard deviation of the slope from row to row,
    noise taken out; a wrong factor has none, a statistic rounded row by row does. ``runs``: in it.
    """

    slope: float
    error: float
    spread: float
    runs: int

    @property
    def sigma(self) -> float:
        """|slope| in standard errors; inf where the slope is exact, 0 where there is none."""
        if self.slope == 0:
            return 0.0
        return abs(self.slope) / self.error if self.error > 0 else math.inf


class Regression:
    """Signed error on one regressor, through the origin; summed run by run.

    Args:
        by_index: also keep what `outliers` needs.
    """

    def __init__(self, by_index: bool = False) -> None:
        self._by_index = by_index
        self._rows: list[torch.Tensor] = []  # per run (2, 2, rows): moment, half of the row
        self._axes: list[torch.Tensor] = []  # per axis (2, n): moments, over all runs
        self._squares: list[torch.Tensor] = []  # per axis (3, n): for the noise of each index
        self._sums: list[torch.Tensor] = []  # per run (2,)

    def add(self, error: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        """One run: float64 tensors of one shape with at least one axis, the same axes each time."""
        scaled = weight * x
        # 0: what the slope's numerator sums, 1: its denominator.
        moments = torch.stack((scaled * error, scaled * x))
        flat = moments.reshape(2, -1, moments.shape[-1])
        self._rows.append(torch.stack([flat[..., i::2].sum(dim=-1) for i in (0, 1)], dim=1))
        self._sums.append(flat.sum(dim=(1, 2)))
        axes = range(error.dim())
        self._axes = _added(self._axes, [_along(moments, axis) for axis in axes])
        if self._by_index:
            squares = [_along_squared(moments, axis) for axis in axes]
            self._squares = _added(self._squares, squares)

    def estimate(self) -> Estimate | None:
        """None where no grouping has enough members to know the noise."""
        if not self._sums:
            return None
        runs = torch.stack(self._sums, dim=1)
        numerator, denominator = (float(s) for s in runs.sum(dim=1))
        if not denominator > 0:
            return None
        slope = numerator / denominator
        halves = torch.cat(self._rows, dim=2)
        rows = halves.sum(dim=1)
        if _few_count(rows[1]):
            # Most of the weight lies in a few of many rows: what those have in common is no noise
            # that other groupings would show.
            return None
        groupings = [rows, runs, *self._axes]
        errors = [e for g in groupings if (e := _standard_error(g, slope, denominator)) is not None]
        if not errors:
            return None
        return Estimate(slope, max(errors), _spread(halves, slope), runs.shape[1])

    def outliers(self, axis: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Slope of each index of ``axis`` and its standard error (inf where unknown)."""
        numerator, denominator = self._axes[axis]
        known = denominator > 0
        safe = torch.where(known, denominator, 1.0)
        slope = numerator / safe
        aa, ab, bb = self._squares[axis]
        variance = (aa - 2 * slope * ab + slope.square() * bb).clamp(min=0)
        # Few draws can agree by chance, and then seem to have no noise.
        known &= (variance > 0) & (denominator.square() >= _DRAWS_PER_INDEX * bb)
        return slope, torch.where(known, variance.sqrt() / safe, math.inf)


def _added(sums: list[torch.Tensor], more: list[torch.Tensor]) -> list[torch.Tensor]:
    return [a + b for a, b in zip(sums, more, strict=True)] if sums else more


def _along(moments: torch.Tensor, axis: int) -> torch.Tensor:
    others = [d for d in range(1, moments.dim()) if d != axis + 1]
    return moments.sum(dim=others) if others else moments


def _along_squared(moments: torch.Tensor, axis: int) -> torch.Tensor:
    """Sums of the products of both moments, per index of ``axis``; except along the last axis, a
    row counts as one draw."""
    if axis != moments.dim() - 2:
        moments = moments.sum(dim=-1, keepdim=True)
    a, b = moments
    return _along(torch.stack((a * a, a * b, b * b)), axis)


def _few_count(weights: torch.Tensor) -> bool:
    """Whether of many groups only a few are in effect, because they outweigh the others."""
    b = weights[weights > 0]
    return b.numel() >= MIN_GROUPS and not _effective(b) >= MIN_GROUPS / 2


def _effective(b: torch.Tensor) -> float:
    """How many equal groups would weigh as unevenly (Kish's effective sample size)."""
    return float(b.sum().square() / b.square().sum())


def _standard_error(groups: torch.Tensor, slope: float, denominator: float) -> float | None:
    a, b = groups[:, groups[1] > 0]
    n = b.numel()
    # Groups in effect: one that outweighs the others leaves few.
    if n < MIN_GROUPS or not _effective(b) >= MIN_GROUPS / 2:
        return None
    return math.sqrt(float((a - slope * b).square().sum()) * n / (n - 1)) / denominator


def _spread(halves: torch.Tensor, slope: float) -> float:
    """What both halves of a row have in common is no noise of single elements."""
    first, second = (halves[0] - slope * halves[1]).unbind()
    scale = float((halves[1, 0] * halves[1, 1]).sum())
    return math.sqrt(max(0.0, float((first * second).sum()) / scale)) if scale > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the structure of one output's error says.

    ``certain`` is False where a failure rests on too few runs: then more are wanted. ``slope``:
    size of the scale error that it rests on; inf where it rests on something else.
    """

    outcome: Outcome
    message: str
    certain: bool = True
    slope: float = math.inf


@dataclasses.dataclass(frozen=True)
class Hint:
    """A known mistake in words, and the slope that it gives on each regressor."""

    words: str
    slopes: dict[str, float]


class Structure:
    """The error of one output, pooled over the runs of a case.

    Args:
        dtype: of the output.
        depth: an upper limit of how many terms its sums have.
    """

    def __init__(self, dtype: torch.dtype, depth: int) -> None:
        self.dtype = dtype
        self.depth = depth
        self._pairs = {
            name: (Regression(by_index=name == "scale"), Regression()) for name in _REGRESSORS
        }
        self._seen: set[tuple[float, float]] = set()
        self._truncation = Truncation()

    def add(self, got: torch.Tensor, value: torch.Tensor, truth: torch.Tensor) -> None:
        """One run: the candidate's output, the reference's, and the oracle's; same shape.

        A run that repeats an earlier one (inputs that do not depend on the seed) adds nothing.
        """
        view = errors(got, value, truth, self.dtype)
        if view is None:
            return
        mine, theirs, y, weight = view
        mark = float(y.sum()), float(y.square().sum())
        if mark in self._seen:
            return
        self._seen.add(mark)
        self._truncation.add(got, truth)
        for name, regressor in _regressors(y).items():
            candidate, reference = self._pairs[name]
            candidate.add(mine, regressor, weight)
            reference.add(theirs, regressor, weight)

    @property
    def runs(self) -> int:
        return len(self._seen)

    def finding(self, hints: Sequence[Hint] = ()) -> Finding | None:
        """The gravest of what the regressors show; None where there is too little to tell."""
        if self._truncation.found:
            return Finding("fail", self._truncation.words())
        found = []
        for name, (candidate, reference) in self._pairs.items():
            mine, theirs = candidate.estimate(), reference.estimate()
            if mine is not None and theirs is not None:
                found.append(self._judge(name, mine, theirs, hints))
        if not found:
            return None
        rank = {"pass": 0, "note": 1, "fail": 2}
        worst = max(found, key=lambda f: rank[f.outcome])
        return (self._by_index() or worst) if worst.outcome == "pass" else worst

    def _judge(self, name: str, mine: Estimate, theirs: Estimate, hints: Sequence[Hint]) -> Finding:
        unit = budget.unit_roundoff(self.dtype)
        text = (
            f"systematic {_REGRESSORS[name]} of {mine.slope:.2g} ({mine.slope / unit:.2g} unit "
            f"roundoffs of {str(self.dtype).removeprefix('torch.')}, {_capped(mine.sigma)} sigma; "
            f"the reference's own is {theirs.slope:.2g})"
        )
        limits = budget.slope_limits(self.dtype, self.depth, mine.slope, theirs.slope)
        noise = math.hypot(mine.error, theirs.error)
        clear = abs(mine.slope - theirs.slope) / noise if noise > 0 else math.inf
        sigma = min(mine.sigma, clear)
        if not sigma > budget.SIGMA_NOTE or not abs(mine.slope) > limits.note:
            return Finding("pass", text)
        like = recognised(name, mine, hints)
        if like:
            text += f": like {like}"
        elif limits.truncation and abs(mine.slope) <= limits.fail:
            text += ": sums in hardware that truncates have such a one"
        grave = bool(like) or abs(mine.slope) > limits.fail
        even = abs(mine.slope) > budget.EVEN * mine.spread
        if not (grave and even and sigma > budget.SIGMA_FAIL):
            return Finding("note", text)
        size = abs(mine.slope) if name.startswith("scale") else math.inf
        return Finding("fail", text, mine.runs >= MIN_GROUPS, size)

    def _by_index(self) -> Finding | None:
        """A note on the few indices of an axis whose scale is off where the others' is not."""
        regression = self._pairs["scale"][0]
        for axis in reversed(range(len(regression._axes))):
            slope, error = regression.outliers(axis)
            usual = float(slope.abs().median())
            above = budget.slope_limits(self.dtype, self.depth, 1.0, usual).fail
            below = budget.slope_limits(self.dtype, self.depth, -1.0, usual).fail
            off = (slope > above) | (slope < -below)
            off &= slope.abs() > budget.SIGMA_FAIL * error
            count = int(off.sum())
            if count and slope.numel() >= 8 and count <= slope.numel() // 8:
                worst = int(torch.where(off, slope.abs(), 0.0).argmax())
                return Finding(
                    "note",
                    f"systematic scale error of {float(slope[worst]):.2g} at index {worst} of axis "
                    f"{axis} ({float((slope.abs() / error)[worst]):.0f} sigma), and of "
                    f"{usual:.1g} at the others ({count} of {slope.numel()} stand out)",
                )
        return None


_REGRESSORS = {
    "scale": "scale error",
    "scale about columns": "scale error (about the mean of each column)",
    "offset": "offset, in units of the output's rms,",
}


def _regressors(y: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the error is regressed on.

    A factor in front of an added bias shows about the mean of each column only."""
    found = {"scale": y, "offset": torch.full_like(y, float(y.square().mean().sqrt()))}
    flat = y.reshape(-1, y.shape[-1])
    if flat.shape[0] >= 8 and y.dim() > 1:
        found["scale about columns"] = (flat - flat.mean(dim=0)).reshape(y.shape)
    return found


def errors(
    got: torch.Tensor, value: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """(signed error of ``got``, of ``value``, truth, weight), float64, with at least one axis.

    Both errors are taken from the truth rounded to ``dtype``: its rounding is part of the best
    possible answer, and where outputs lie close together it is biased by itself. The weight is the
    inverse variance of an honest error: unit roundoff times the element, and the reference's rms
    error over the row. None where nothing is finite.
    """
    if truth.is_complex():
        got, value = torch.view_as_real(got.resolve_conj()), torch.view_as_real(value)
        truth = torch.view_as_real(truth.resolve_conj())
    if truth.dim() == 0:
        got, value, truth = got.reshape(1), value.reshape(1), truth.reshape(1)
    wide, own = got.to(torch.float64), value.to(torch.float64)
    best = truth.to(dtype).to(torch.float64)
    usable = torch.isfinite(wide) & torch.isfinite(own) & torch.isfinite(best)
    # What a kernel may flush to zero would look as if it were scaled by zero.
    usable &= (truth == 0) | (truth.abs() >= budget.flushed_below(dtype))
    if not bool(usable.any()):
        return None
    y = torch.where(usable, truth, 0.0)
    mine, theirs = torch.where(usable, wide - best, 0.0), torch.where(usable, own - best, 0.0)
    unit = budget.unit_roundoff(dtype)
    own_rms, size = _row_rms(torch.where(usable, own - y, 0.0)), _row_rms(y)
    # A row in which the reference is lucky must not outweigh all others.
    relative = torch.where(size > 0, own_rms / torch.where(size > 0, size, 1.0), 0.0)
    typical = float(relative.square().mean().sqrt())
    row = torch.maximum(own_rms, max(unit / 4, typical) * size)
    variance = (unit * y).square() + row.square()
    return mine, theirs, y, torch.where(variance > 0, 1 / variance, 0.0)


def _row_rms(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(dim=-1, keepdim=True).sqrt()


def _capped(sigma: float) -> str:
    return f"{sigma:.0f}" if sigma < 1e6 else "over 1e6"


def recognised(regressor: str, found: Estimate, hints: Sequence[Hint]) -> str:
    """The words of the hints whose slope ``found`` is, up to noise; "" for none."""
    words = []
    for hint in hints:
        expected = hint.slopes.get(regressor)
        if expected is not None and abs(found.slope - expected) <= (
            3 * found.error + budget.ALIKE * abs(expected)
        ):
            words.append(hint.words)
    return " or ".join(words[:3])


def counting_hints(sizes: Iterable[int]) -> list[Hint]:
    """The slips between N and N - 1, for each N of ``sizes``."""
    hints = []
    for n in sorted({n for n in sizes if n > 1}):
        for words, slope in (
            (f"N - 1 for N in a variance of N = {n}", math.sqrt((n - 1) / n) - 1),
            (f"N for N - 1 in a variance of N = {n}", math.sqrt(n / (n - 1)) - 1),
            (f"N for N - 1 with N = {n}", (n - 1) / n - 1),
            (f"N - 1 for N with N = {n}", n / (n - 1) - 1),
        ):
            hints.append(Hint(words, dict.fromkeys(("scale", "scale about columns"), slope)))
    return hints


def hint_of(
    words: str, other: torch.Tensor, value: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype
) -> Hint | None:
    """What a mistake gives whose output would be ``other`` (float64); None where it gives the same.

    Args:
        value, truth: the reference's output and the oracle's, of the same shape.
    """
    view = errors(value, value, truth, dtype)
    if view is None or other.shape != truth.shape or other.is_complex():
        return None
    _, _, y, weight = view
    change = torch.nan_to_num(other.reshape(y.shape) - y, nan=0.0, posinf=0.0, neginf=0.0)
    slopes = {}
    for name, regressor in _regressors(y).items():
        sums = (weight * regressor * change).sum(), (weight * regressor.square()).sum()
        if float(sums[1]) > 0:
            slopes[name] = float(sums[0] / sums[1])
    return Hint(words, slopes) if any(slopes.values()) else None
