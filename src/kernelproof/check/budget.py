"""The only place where a tolerance is computed.

The proof verdict compares a candidate's error against the float64 truth with the error that an
honest computation in the same precision makes. Per row of the last axis, per column, and over the
whole tensor, the allowance is the largest of

    the reference's own error in the working precision,
    the oracle's response to a one-ulp perturbation of the inputs (their conditioning),
    half the error of plain serial sums in fp32,
    the unit roundoff of the output's dtype times the size of the truth (16 bits: half of it),
    a quarter of that of 16-bit inputs times the size of the truth,
    where the truth is zero, float64's unit roundoff of the tensor's largest value,
    the smallest normal number of float32 (float64), below which hardware may flush to zero,

all as root mean squares, and a candidate passes while its error is at most ``LIMIT`` times that.
A row in which the reference happens to be lucky also gets the reference's typical relative error,
so that luck of the reference never fails a candidate. What lies at one index of the last axis is
judged as a row is: a column that is wrong throughout is little of any row.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

# Over 45 kernels on 8 problems, honest ones (serial, pairwise and split sums, fp64 accumulation,
# FMA, 3xTF32, online softmax, chunked recurrences) stayed at or below 9 and arithmetically wrong
# ones at or above 15.
LIMIT = 12.0
# Below this the response and the error of serial sums, which would only lower it, are not measured.
CLEAR = 4.0

# Of fewer elements than this no column is judged: the reference's error in them is luck.
_COLUMN = 16

# How much of the error of plain serial sums (accumulation.py) counts: times LIMIT it is six times
# the plainest honest kernel's, of which stagnating totals take up to three. TF32 stays outside: in
# a product of normal numbers its error is 21 times that limit at 4,096 terms, 5.8 times at 65,536.
SERIAL_SHARE = 0.5

# A row of zeros may be what the oracle's own rounding cancelled to nothing, such as 1 + erf(z) far
# below 0, where a kernel by erfc is right with 1e-17: so much of the tensor's largest value.
_ORACLE_ROUNDOFF = 2.0**-53

# Outputs of 16 bits are rounded once, by 0.42 unit roundoffs as a root mean square (measured over
# the corpus: honest kernels 0.38 to 1.0). Products of operands in eight bits make 9.5 unit
# roundoffs of bfloat16, and are over the limit by this; float32's unit roundoff leaves room for the
# arithmetic before.
_ROUNDING_16 = 0.5

# A kernel may round what it makes of 16-bit inputs to 16 bits on the way, as tensor cores and flash
# attention want it, also where its output is float32: on an H200 states of gated linear attention
# were off by up to 0.6 unit roundoffs of bfloat16 and its outputs by up to 1.5; 12 times this is 3.
_ROUNDED_ON_THE_WAY = 0.25

# Structure of the error (structure.py; measurements in its part of the documents).
#
# Significance: a normal error of 8 sigma happens once in 10^15. A failure needs six runs, and where
# the scatter between them is what there is to go by, 12 sigma happens once in 10^4 (Student's t of
# 5 degrees of freedom). Neither fails by itself: honest fp32 kernels reach 300 sigma with half a
# unit roundoff, from one rounded constant. The size decides too.
SIGMA_NOTE = 8.0
SIGMA_FAIL = 12.0
# A wrong factor is the same in every row. A statistic rounded row by row to the output's precision
# spreads by half as much as its own bias or more: its values cover more than one unit in the last
# place unless rows are longer than a million.
EVEN = 2.0
# Two slopes are alike within three standard errors and this share of the slope: the output's own
# rounding is coarse beside what is looked for, and does not pass it on evenly.
ALIKE = 0.03
# Constants, and functions that the hardware approximates, are each off by one unit roundoff or two,
# the same everywhere: four together are honest.
_HONEST_UNITS = 4.0
# Hardware that truncates loses 0.72 unit roundoffs of the partial sum at each step; partial sums
# are half the final on average, a step takes at least four terms, and 3xTF32 takes three steps for
# one. (Measured: 0.09 per term at four terms a step, 0.046 at eight, 0.13 for 3xTF32 at eight.)
_TRUNCATED_UNITS_PER_TERM = 3 * 0.72 / 2 / 4
# Running totals of positive terms that have grown large swallow small ones, always to the same
# side: a scale error of up to so many times the size of serial rounding is honest. (Measured: 1.1
# times in a softmax over 20,011 columns.)
STAGNATION = 3.0
# A 16-bit output is truncated where at least so many elements, and so large a share of them, are
# the truth with its bits cut off, and rounding to nearest would have raised this share of them
# (half, where values are spread). Rounding to nearest agrees with cutting for the other half only.
TRUNCATION_ELEMENTS = 1000
TRUNCATION_MATCH = 0.99
TRUNCATION_SHARE = 0.2
# Sizes below which not even a note is due, in unit roundoffs. In 16-bit outputs the inside is fp32
# in most kernels, and the output's own rounding is taken out before.
_NOTE_UNITS = 1.0
_NOTE_UNITS_16 = 1 / 128

# KernelBench's published tolerances, by dtype of the output.
_COMPAT: dict[torch.dtype, float] = {
    torch.float16: 1e-2,
    torch.bfloat16: 1e-2,
}
_COMPAT_DEFAULT = 1e-4


def compat_tolerance(
    dtype: torch.dtype, atol: float | None, rtol: float | None
) -> tuple[float, float]:
    """(atol, rtol) of the compat verdict: the problem's own, else KernelBench's for ``dtype``."""
    default = _COMPAT.get(dtype, _COMPAT_DEFAULT)
    return (default if atol is None else atol, default if rtol is None else rtol)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Largest relative error of rounding to ``dtype``: half its machine epsilon."""
    return float(torch.finfo(dtype).eps) / 2


@dataclasses.dataclass(frozen=True)
class SlopeLimits:
    """Sizes of a systematic relative error: above ``note`` it is told, above ``fail`` no honest
    computation has it. ``truncation``: whether ``fail`` leaves room for truncated sums."""

    note: float
    fail: float
    truncation: bool


def slope_limits(dtype: torch.dtype, depth: int, slope: float, own: float) -> SlopeLimits:
    """Limits for a systematic relative error ``slope`` of an output of ``dtype``.

    Args:
        depth: the most terms that a sum behind the output can have. Truncation shrinks sums, so
            only a negative slope gets room for it; that happens in fp32 at best.
        own: the reference's slope. Three times as much is still like the reference.
    """
    unit = unit_roundoff(dtype)
    fail, note = _HONEST_UNITS * unit, _NOTE_UNITS * unit
    lost = _TRUNCATED_UNITS_PER_TERM * depth * unit_roundoff(torch.float32) if slope < 0 else 0.0
    if dtype.itemsize < 4:
        note = _NOTE_UNITS_16 * unit
    fail += lost
    return SlopeLimits(max(note, 3 * abs(own)), max(fail, 3 * abs(own)), lost > unit)


@dataclasses.dataclass(frozen=True)
class Excess:
    """A candidate's error over the allowance: 1 means as large as an honest computation's.

    ``worst_row`` indexes the rows of `rows_of`, or its columns where ``column``.
    """

    rows: float
    all: float
    worst_row: int
    column: bool = False

    def within(self) -> bool:
        """Whether both are at most `LIMIT`; NaN is not."""
        return self.rows <= LIMIT and self.all <= LIMIT


def clear(rows: float, all_: float) -> bool:
    """Whether an `Excess` is so small that what enlarges the allowance need not be measured."""
    return rows <= CLEAR and all_ <= CLEAR


def rounding_of(leaves: Sequence[Any]) -> float:
    """The largest unit roundoff of 16-bit tensors among ``leaves`` (8 bits count as bfloat16, which
    they are computed in); 0 without such."""
    narrow = {
        torch.bfloat16 if leaf.dtype.itemsize == 1 else leaf.dtype
        for leaf in leaves
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.dtype.itemsize <= 2
    }
    return max((unit_roundoff(dtype) for dtype in narrow), default=0.0)


def rows_of(x: torch.Tensor) -> torch.Tensor:
    """``x`` as (rows, elements of the last axis); a 0-d tensor is one row of one."""
    return x.reshape(-1, x.shape[-1]) if x.dim() > 0 and x.numel() else x.reshape(1, -1)


def flushed_below(dtype: torch.dtype) -> float:
    """The smallest normal number of what kernels for ``dtype`` compute in: below it they may flush
    to zero."""
    return float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).tiny)


@dataclasses.dataclass(frozen=True)
class Rows:
    """What the rows of an output hold, as root mean squares, float64: errors of candidate and
    reference, the truth, its response, and the error of serial sums. ``largest``: of the truth."""

    error: torch.Tensor
    own: torch.Tensor
    size: torch.Tensor
    moved: torch.Tensor
    summed: torch.Tensor
    largest: torch.Tensor

    @classmethod
    def of(
        cls, got: torch.Tensor, truth: torch.Tensor, reference: torch.Tensor,
        response: torch.Tensor, serial: torch.Tensor | None = None,
    ) -> Rows:  # fmt: skip
        """Arguments as of `excess`; with at least one element."""
        moved = _row_rms(response)
        return cls(
            error=_row_rms(got - truth),
            own=_row_rms(reference - truth),
            size=_row_rms(truth),
            moved=moved,
            summed=torch.zeros_like(moved) if serial is None else _row_rms(serial),
            largest=truth.abs().max(),
        )

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all ``parts``, in their order."""
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in dataclasses.fields(cls)]
        found = {name: torch.cat([getattr(p, name).reshape(-1) for p in parts]) for name in names}
        return cls(**{**found, "largest": found["largest"].max()})

    @classmethod
    def merged(cls, pieces: Sequence[Rows], counts: Sequence[int]) -> Rows:
        """The one row that is made of ``pieces`` of so many elements each."""
        share = torch.tensor(counts, dtype=torch.float64) * len(counts) / sum(counts)

        def whole(name: str) -> torch.Tensor:
            sizes = torch.cat([getattr(piece, name).reshape(1) for piece in pieces])
            return _row_rms(sizes * share.sqrt())

        found = {name: whole(name) for name in ("error", "own", "size", "moved", "summed")}
        return cls(**found, largest=torch.stack([piece.largest for piece in pieces]).max())

    def excess(self, dtype: torch.dtype, rounding: float = 0.0) -> Excess:
        """Error over what is allowed; arguments as of `excess`."""
        size, summed = self.size, SERIAL_SHARE * self.summed
        relative = _safe_ratio(self.own, size)
        typical = math.sqrt(float(relative.square().mean()))
        unit = unit_roundoff(dtype) * (_ROUNDING_16 if dtype.itemsize == 2 else 1.0)
        floor = max(unit, _ROUNDED_ON_THE_WAY * rounding) * size
        cancelled = torch.where(size == 0, _ORACLE_ROUNDOFF * self.largest, 0.0)
        # Where nothing is wrong by more, in 16 bits too: these are computed in float32.
        flushed = flushed_below(dtype)
        own_and_others = (self.own, self.moved, summed, floor, typical * size, cancelled)
        allowed = torch.stack(own_and_others).amax(dim=0).clamp(min=flushed)
        per_row = _over(self.error, allowed)
        whole_allowed = max(_rms(self.own), _rms(self.moved), _rms(summed), _rms(floor), flushed)
        whole = float(_over(_scalar(_rms(self.error)), _scalar(whole_allowed)))
        worst = int(torch.nan_to_num(per_row, nan=math.inf).argmax())
        return Excess(float(per_row[worst]), whole, worst)


@dataclasses.dataclass(frozen=True)
class Columns:
    """Sums of squares over so many ``rows``, for each index of the last axis: of errors of
    candidate and reference, the truth, its response, and the error of serial sums."""

    squares: torch.Tensor  # (5, columns)
    rows: int

    @classmethod
    def of(
        cls, got: torch.Tensor, truth: torch.Tensor, reference: torch.Tensor,
        response: torch.Tensor, serial: torch.Tensor | None = None,
    ) -> Columns:  # fmt: skip
        """Arguments as of `excess`; with at least one element."""
        none = torch.zeros_like(response) if serial is None else serial
        parts = (got - truth, reference - truth, truth, response, none)
        sums = [rows_of(part).to(torch.float64).square().sum(dim=0) for part in parts]
        return cls(torch.stack(sums), truth.numel() // sums[0].numel())

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Of the rows of all ``parts``."""
        return cls(torch.stack([p.squares for p in parts]).sum(dim=0), sum(p.rows for p in parts))

    @classmethod
    def beside(cls, pieces: Sequence[Columns]) -> Columns:
        """Of the rows that are made of ``pieces``."""
        return cls(torch.cat([piece.squares for piece in pieces], dim=1), pieces[0].rows)

    def as_rows(self, largest: torch.Tensor) -> Rows | None:
        """Each column as if it were a row; None where they have too few elements, or such as have
        no squares. ``largest``: of the truth."""
        if self.rows < _COLUMN or not bool(self.squares.isfinite().all()):
            return None
        error, own, size, moved, summed = (self.squares / self.rows).sqrt()
        return Rows(error, own, size, moved, summed, largest)


def excess_of(rows: Rows, columns: Columns, dtype: torch.dtype, rounding: float) -> Excess:
    """The worst of an output's rows and columns, and its whole; other arguments as of `excess`."""
    worst = rows.excess(dtype, rounding)
    turned = columns.as_rows(rows.largest)
    if turned is None:
        return worst
    found = turned.excess(dtype, rounding)
    if not found.rows > worst.rows:
        return worst
    return dataclasses.replace(worst, rows=found.rows, worst_row=found.worst_row, column=True)


def excess(
    got: torch.Tensor,
    truth: torch.Tensor,
    reference: torch.Tensor,
    response: torch.Tensor,
    dtype: torch.dtype,
    serial: torch.Tensor | None = None,
    rounding: float = 0.0,
) -> Excess:
    """Error of ``got`` over what is allowed.

    Args:
        got: the candidate's output, float64, finite.
        truth: the oracle's output, float64, same shape.
        reference: the reference's output in the working precision, lifted to float64.
        response: size of oracle(perturbed inputs) - truth, element by element.
        dtype: the output's own dtype, for its unit roundoff.
        serial: size of the error of plain serial sums, element by element; None for none.
        rounding: the unit roundoff of the 16-bit numbers that the output is made from; 0 for none.
    """
    if truth.numel() == 0:
        return Excess(0.0, 0.0, 0)
    numbers = (got, truth, reference, response, serial)
    rows, columns = Rows.of(*numbers), Columns.of(*numbers)
    return excess_of(rows, columns, dtype, rounding)


def _row_rms(x: torch.Tensor) -> torch.Tensor:
    rows = rows_of(x).abs().to(torch.float64)
    # Scaled by the largest element, so that squares neither overflow nor vanish.
    top = rows.amax(dim=1, keepdim=True)
    unit = torch.where(top > 0, top, torch.ones_like(top))
    return (rows / unit).square().mean(dim=1).sqrt() * unit.squeeze(1)


def _rms(x: torch.Tensor) -> float:
    """Root mean square of row values, safe from overflow and underflow like `_row_rms`."""
    return float(_row_rms(x))


def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _safe_ratio(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, torch.ones_like(b)), torch.zeros_like(a))


def _over(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """error / allowed, with 0 / 0 = 0 and x / 0 = inf; NaN stays NaN."""
    nothing = torch.zeros_like(error)
    ratio = error / torch.where(allowed > 0, allowed, torch.ones_like(allowed))
    exact = torch.where(error == 0, nothing, torch.full_like(error, math.inf))
    exact = torch.where(error.isnan(), error, exact)
    return torch.where(allowed > 0, ratio, exact)
