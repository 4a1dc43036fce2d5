"""What is judged of one floating output, gathered in blocks that stay in a CPU's caches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.check.figures import Sums

# Elements that a thread judges at a time on a CPU: as many as torch leaves to one thread.
_BLOCK = 1 << 15
# Partial sums of up to 256 terms of like size are at most so many times their root sum of squares.
_PARTIAL = 16


@dataclasses.dataclass(frozen=True)
class Expected:
    """What one output should be: all on the same device, same shape.

    ``value``: the reference's output in working precision. ``truth``: the oracle's. ``response``:
    size of the oracle's change under one-ulp perturbations of the inputs. ``serial``: size of the
    error of plain serial sums; None where it was not measured. ``levels``: precision name -> rms
    error of the reference computed in that precision. ``ties``: of integers, the elements of one
    output that differ where rounding decides (see `ties`); None where none was looked for.
    ``rounding``: the unit roundoff of the 16-bit inputs, 0 without such.
    """

    value: Any
    truth: Any
    response: Any
    levels: dict[str, float] = dataclasses.field(default_factory=dict)
    serial: Any = None
    ties: Any = None
    rounding: float = 0.0


@dataclasses.dataclass(frozen=True)
class Wide:
    """A floating output or some rows of it in float64: the candidate's, the reference's and the
    true values; where one of the last two is no number, which elements match the reference all the
    same, and which are no number where they should be one, or the reverse."""

    got: torch.Tensor
    own: torch.Tensor
    truth: torch.Tensor
    odd: torch.Tensor
    finite: torch.Tensor
    matches: torch.Tensor
    stray: torch.Tensor

    @classmethod
    def of(cls, got: torch.Tensor, expected: Expected) -> Wide:
        wide, own = got.to(torch.float64), expected.value.to(torch.float64)
        wide, own = _at_the_edge(wide, own, expected)
        # Where the working precision overflows, or the oracle does, the reference is the truth.
        finite = torch.isfinite(own)
        odd = ~finite | ~torch.isfinite(expected.truth)
        truth = torch.where(odd, own, expected.truth)
        matches = (wide == own) | (wide.isnan() & own.isnan())
        stray = (odd & ~finite & ~matches) | (~torch.isfinite(wide) & finite)
        return cls(wide, own, truth, odd, finite, matches, stray)

    def rows(self, expected: Expected) -> tuple[budget.Rows, budget.Columns]:
        odd, finite, serial = self.odd, self.finite, expected.serial
        numbers = (
            torch.where(finite, self.got, 0.0),
            torch.where(finite, self.truth, 0.0),
            torch.where(finite, self.own, 0.0),
            torch.where(odd, 0.0, expected.response),
            None if serial is None else torch.where(odd, 0.0, serial),
        )
        return budget.Rows.of(*numbers), budget.Columns.of(*numbers)

    def sums(self, dtype: torch.dtype) -> tuple[Sums, Sums]:
        """Of the candidate and of the reference."""
        known = self.matches & self.odd
        seen = torch.where(known, 0.0, self.got), torch.where(known, 0.0, self.truth)
        own = torch.where(self.odd, 0.0, self.own), torch.where(self.odd, 0.0, self.truth)
        return Sums.of(*seen, dtype), Sums.of(*own, dtype)

    def error(self) -> torch.Tensor:
        """|got - truth|, inf where it is stray."""
        error = torch.nan_to_num((self.got - self.truth).abs(), nan=torch.inf)
        error = torch.where(torch.isfinite(self.truth), error, 0.0)
        return torch.where(self.stray, torch.inf, error)


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a judgement needs of some rows of an output. ``worst``: size of the largest error, its
    index in the flattened rows, and what stands there and should."""

    compat: bool
    stray: bool
    rows: budget.Rows
    columns: budget.Columns
    sums: tuple[Sums, Sums]
    worst: tuple[float, int, float, float]

    @classmethod
    def of(
        cls, got: torch.Tensor, expected: Expected, atol: float, rtol: float, begin: int = 0
    ) -> Summary:
        """``begin``: index of the first element in the whole output."""
        value, dtype = expected.value, expected.value.dtype
        wide = Wide.of(got, expected)
        # In the output's own precision, as others do; torch does not compute in eight bits.
        both = (got.double(), value.double()) if dtype.itemsize == 1 else (got, value)
        error = wide.error().flatten()
        at = int(error.argmax())
        numbers = (float(x.flatten()[at]) for x in (error, wide.got, wide.truth))
        size, mine, true = numbers
        rows, columns = wide.rows(expected)
        return cls(
            compat=bool(torch.allclose(*both, atol=atol, rtol=rtol, equal_nan=True)),
            stray=bool(wide.stray.any()),
            rows=rows,
            columns=columns,
            sums=wide.sums(dtype),
            worst=(size, begin + at, mine, true),
        )

    @classmethod
    def joined(
        cls, parts: Sequence[Summary],
        columns: Callable[[Sequence[budget.Columns]], budget.Columns] = budget.Columns.joined,
    ) -> Summary:  # fmt: skip
        """Of the rows of all ``parts``; ``columns``: how theirs are put together."""
        return cls(
            compat=all(part.compat for part in parts),
            stray=any(part.stray for part in parts),
            rows=budget.Rows.joined([part.rows for part in parts]),
            columns=columns([part.columns for part in parts]),
            sums=(Sums.joined([p.sums[0] for p in parts]), Sums.joined([p.sums[1] for p in parts])),
            worst=max((part.worst for part in parts), key=lambda worst: worst[0]),
        )


def summary(got: torch.Tensor, expected: Expected, atol: float, rtol: float) -> Summary:
    """On a CPU by blocks, of rows or within a row: temporaries as large as the output are new pages
    of memory each time, which take longer than what is computed."""
    value = expected.value
    if value.device.type != "cpu" or value.numel() <= _BLOCK:
        return Summary.of(got, expected, atol, rtol)
    width = value.shape[-1]

    def seen(part: tuple[int, torch.Tensor, Expected]) -> Summary:
        begin, mine, want = part
        return Summary.of(mine, want, atol, rtol, begin)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        if width <= _BLOCK:
            rows = rows_of(got, expected, _BLOCK // width)
            return Summary.joined(list(pool.map(seen, ((n * width, *part) for n, *part in rows))))
        found = []
        for number, mine, want in rows_of(got, expected, 1):
            pieces = list(pool.map(seen, _pieces_of(number * width, mine, want)))
            counts = [piece.sums[0].count for piece in pieces]
            merged = budget.Rows.merged([piece.rows for piece in pieces], counts)
            whole = Summary.joined(pieces, budget.Columns.beside)
            found.append(dataclasses.replace(whole, rows=merged))
        return Summary.joined(found)


def _pieces_of(
    begin: int, got: torch.Tensor, expected: Expected
) -> Iterator[tuple[int, torch.Tensor, Expected]]:
    """A row by so many elements at a time, with the index of the first of them, where that of the
    row is ``begin``."""
    for first in range(0, got.shape[-1], _BLOCK):
        yield begin + first, *_cut(got, expected, (slice(None), slice(first, first + _BLOCK)))


def rows_of(
    got: torch.Tensor, expected: Expected, step: int
) -> Iterator[tuple[int, torch.Tensor, Expected]]:
    """So many rows of the last axis at a time, and the number of the first of them."""
    shape = expected.value.shape
    rows, width = math.prod(shape[:-1]), shape[-1]
    flat = {name: x.reshape(rows, width) for name, x in _tensors(expected).items()}
    mine, whole = got.reshape(rows, width), dataclasses.replace(expected, **flat)
    for begin in range(0, rows, step):
        yield begin, *_cut(mine, whole, slice(begin, begin + step))


def _cut(got: torch.Tensor, expected: Expected, place: Any) -> tuple[torch.Tensor, Expected]:
    parts = {name: x[place] for name, x in _tensors(expected).items()}
    return got[place], dataclasses.replace(expected, **parts)


def _tensors(expected: Expected) -> dict[str, Any]:
    found = {field.name: getattr(expected, field.name) for field in dataclasses.fields(expected)}
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def _at_the_edge(
    got: torch.Tensor, own: torch.Tensor, expected: Expected
) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidate and reference with the truth where one of them may have overflowed on the way.

    A sum within the range of its type may have partial sums beyond it in one order and not in
    another. So an infinity may stand where the terms, by the response to perturbations, or the
    result come near the end of the range; and where the reference has one although the truth is
    within the range, a finite result is judged against the truth. Sums of 16-bit numbers are taken
    in float32, which has room for all of them.
    """
    if expected.value.dtype.itemsize < 4:
        return got, own
    if not (bool(got.isinf().any()) or bool(own.isinf().any())):
        return got, own
    info = torch.finfo(expected.value.dtype)
    truth = expected.truth
    terms = torch.nan_to_num(expected.response, posinf=0.0) / budget.unit_roundoff(
        expected.value.dtype
    )
    beyond = terms * _PARTIAL >= info.max
    near = 2 * truth.abs() >= info.max
    mine = got.isinf() & torch.isfinite(own) & (beyond | (near & (got.sign() == truth.sign())))
    theirs = own.isinf() & torch.isfinite(got) & (beyond | near) & (truth.abs() <= info.max)
    sure = torch.isfinite(truth)
    return torch.where(mine & sure, truth, got), torch.where(theirs & sure, truth, own)
