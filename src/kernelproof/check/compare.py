"""Judge one output tensor of one run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.check.explain import pattern
from kernelproof.check.figures import Sums, figures, looks_like, lower_precision
from kernelproof.check.values import on
from kernelproof.types import OutputVerdict

# Outputs with more elements are judged in parts, each of whole rows: a dozen temporaries in float64
# of 2^31 elements do not fit anywhere.
_PART = 1 << 26
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


def compare(
    name: str, got: Any, expected: Expected, atol: float | None, rtol: float | None
) -> OutputVerdict:
    """Judge ``got``, an output leaf of the candidate, against ``expected``."""
    value = expected.value
    if isinstance(value, torch.Tensor) and value.numel() > _PART and value.dim() > 1:
        form = _form_problem(name, got, value)
        return _failed(name, value, form) if form else _by_parts(name, got, expected, atol, rtol)
    if not isinstance(value, torch.Tensor):
        return _compare_plain(name, got, value)
    form = _form_problem(name, got, value)
    if form:
        return _failed(name, value, form)
    got = on(got, str(value.device))
    if value.is_complex():
        real = Expected(
            torch.view_as_real(value.resolve_conj()),
            torch.view_as_real(expected.truth.resolve_conj()),
            torch.view_as_real(expected.response.resolve_conj()),
            expected.levels,
            None if expected.serial is None else torch.view_as_real(expected.serial),
            rounding=expected.rounding,
        )
        return compare(name, torch.view_as_real(got), real, atol, rtol)
    if not value.is_floating_point():
        return _compare_exact(name, got, expected)
    return _compare_floating(name, got, expected, atol, rtol)


def _by_parts(
    name: str, got: torch.Tensor, expected: Expected, atol: float | None, rtol: float | None
) -> OutputVerdict:
    """The worst part of a large output, its indices and counts in terms of the whole."""
    shape = expected.value.shape
    rows, width = math.prod(shape[:-1]), shape[-1]
    step = max(1, _PART // max(1, width))
    parts = [
        (begin, compare(name, mine, part, atol, rtol))
        for begin, mine, part in _rows_of(got, expected, step)
    ]
    begin, worst = max(parts, key=lambda p: (not p[1].passed, p[1].ratio_rows, p[1].ratio_all))
    update: dict[str, Any] = {
        "shape": tuple(shape),
        "compat": all(v.compat for _, v in parts),
        "wrong": sum(v.wrong for _, v in parts),
    }
    if worst.worst_index:
        at = (begin + worst.worst_index[0]) * width + worst.worst_index[1]
        update["worst_index"] = _unravel(at, shape)
        if worst.message:
            where = f"of rows {begin} to {min(rows, begin + step) - 1}, flattened: "
            update["message"] = where + worst.message
    return worst.model_copy(update=update)


def _form_problem(name: str, got: Any, value: torch.Tensor) -> str:
    if not isinstance(got, torch.Tensor):
        kind = getattr(got, "type_name", type(got).__name__)
        return f"{name} is a {kind}, expected exactly torch.Tensor"
    if got.shape != value.shape:
        return f"{name} has shape {tuple(got.shape)}, expected {tuple(value.shape)}"
    if got.dtype != value.dtype:
        return f"{name} has dtype {got.dtype}, expected {value.dtype}"
    if got.dtype == torch.bool and got.numel() and int(got.view(torch.uint8).max()) > 1:
        # True to some operations of torch and not to others: `&` works on the bits.
        return f"{name} is bool and holds bytes other than 0 and 1"
    return ""


def _failed(name: str, value: torch.Tensor, message: str) -> OutputVerdict:
    return OutputVerdict(
        name=name,
        shape=tuple(value.shape),
        dtype=str(value.dtype).removeprefix("torch."),
        passed=False,
        compat=False,
        message=message,
    )


def _compare_plain(name: str, got: Any, value: Any) -> OutputVerdict:
    """Outputs that are no tensors: equal, or for floats equal up to the compat tolerance."""
    if isinstance(value, float) and isinstance(got, float):
        same = abs(got - value) <= 1e-4 + 1e-4 * abs(value) or (got != got and value != value)
    else:
        same = type(got) is type(value) and got == value
    message = "" if same else f"{name} is {got!r:.80}, expected {value!r:.80}"
    return OutputVerdict(
        name=name, shape=(), dtype=type(value).__name__, passed=same, compat=same, message=message
    )


def _compare_exact(name: str, got: torch.Tensor, expected: Expected) -> OutputVerdict:
    """Integers and booleans: each element equals the reference's or the oracle's (they differ where
    rounding decides, as in an argmax between near ties), or is such a tie itself."""
    value, truth = expected.value, expected.truth.to(expected.value.dtype)
    off = (got != value) & (got != truth)
    if expected.ties is not None:
        off &= ~expected.ties.to(off.device)
    wrong = int(off.sum())
    base = _failed(name, value, "")
    if not wrong:
        return base.model_copy(update={"passed": True, "compat": bool((got == value).all())})
    index = _unravel(int(off.flatten().to(torch.uint8).argmax()), value.shape)
    words = pattern(got.to(torch.float64), value.to(torch.float64), off)
    return base.model_copy(
        update={
            "wrong": wrong,
            "worst_index": index,
            "worst_got": float(got[index]),
            "worst_expected": float(value[index]),
            "message": f"{wrong} of {value.numel()} integers differ, first at {list(index)}: "
            f"{got[index].item()} instead of {value[index].item()}"
            + (f". {words[0].upper()}{words[1:]}" if words else ""),
        }
    )


@dataclasses.dataclass(frozen=True)
class _Wide:
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
    def of(cls, got: torch.Tensor, expected: Expected) -> _Wide:
        wide, own = got.to(torch.float64), expected.value.to(torch.float64)
        wide, own = _at_the_edge(wide, own, expected)
        # Where the working precision overflows, or the oracle does, the reference is the truth.
        finite = torch.isfinite(own)
        odd = ~finite | ~torch.isfinite(expected.truth)
        truth = torch.where(odd, own, expected.truth)
        matches = (wide == own) | (wide.isnan() & own.isnan())
        stray = (odd & ~finite & ~matches) | (~torch.isfinite(wide) & finite)
        return cls(wide, own, truth, odd, finite, matches, stray)

    def rows(self, expected: Expected) -> budget.Rows:
        odd, finite, serial = self.odd, self.finite, expected.serial
        return budget.Rows.of(
            torch.where(finite, self.got, 0.0),
            torch.where(finite, self.truth, 0.0),
            torch.where(finite, self.own, 0.0),
            torch.where(odd, 0.0, expected.response),
            None if serial is None else torch.where(odd, 0.0, serial),
        )

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
class _Seen:
    """What a judgement needs of some rows of an output. ``worst``: size of the largest error, its
    index in the flattened rows, and what stands there and should."""

    compat: bool
    stray: bool
    rows: budget.Rows
    sums: tuple[Sums, Sums]
    worst: tuple[float, int, float, float]

    @classmethod
    def of(
        cls, got: torch.Tensor, expected: Expected, atol: float, rtol: float, begin: int = 0
    ) -> _Seen:
        """``begin``: index of the first element in the whole output."""
        value, dtype = expected.value, expected.value.dtype
        wide = _Wide.of(got, expected)
        # In the output's own precision, as others do; torch does not compute in eight bits.
        both = (got.double(), value.double()) if dtype.itemsize == 1 else (got, value)
        error = wide.error().flatten()
        at = int(error.argmax())
        numbers = (float(x.flatten()[at]) for x in (error, wide.got, wide.truth))
        size, mine, true = numbers
        return cls(
            compat=bool(torch.allclose(*both, atol=atol, rtol=rtol, equal_nan=True)),
            stray=bool(wide.stray.any()),
            rows=wide.rows(expected),
            sums=wide.sums(dtype),
            worst=(size, begin + at, mine, true),
        )

    @classmethod
    def joined(cls, parts: Sequence[_Seen]) -> _Seen:
        return cls(
            compat=all(part.compat for part in parts),
            stray=any(part.stray for part in parts),
            rows=budget.Rows.joined([part.rows for part in parts]),
            sums=(Sums.joined([p.sums[0] for p in parts]), Sums.joined([p.sums[1] for p in parts])),
            worst=max((part.worst for part in parts), key=lambda worst: worst[0]),
        )


def _seen(got: torch.Tensor, expected: Expected, atol: float, rtol: float) -> _Seen:
    """On a CPU by blocks of rows: temporaries as large as the output are new pages of memory each
    time, which take longer than what is computed."""
    value = expected.value
    width = value.shape[-1] if value.dim() > 1 else value.numel()
    if value.device.type != "cpu" or value.numel() <= _BLOCK or width > _BLOCK:
        return _Seen.of(got, expected, atol, rtol)

    def seen(part: tuple[int, torch.Tensor, Expected]) -> _Seen:
        begin, mine, want = part
        return _Seen.of(mine, want, atol, rtol, begin * width)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return _Seen.joined(list(pool.map(seen, _rows_of(got, expected, _BLOCK // width))))


def _rows_of(
    got: torch.Tensor, expected: Expected, step: int
) -> Iterator[tuple[int, torch.Tensor, Expected]]:
    """So many rows of the last axis at a time, and the number of the first of them."""
    shape = expected.value.shape
    rows, width = math.prod(shape[:-1]), shape[-1]
    flat = {
        field: getattr(expected, field).reshape(rows, width)
        for field in ("value", "truth", "response", "serial", "ties")
        if isinstance(getattr(expected, field), torch.Tensor)
    }
    mine = got.reshape(rows, width)
    for begin in range(0, rows, step):
        cut = slice(begin, begin + step)
        yield (
            begin,
            mine[cut],
            dataclasses.replace(expected, **{f: t[cut] for f, t in flat.items()}),
        )


def _compare_floating(
    name: str, got: torch.Tensor, expected: Expected, atol: float | None, rtol: float | None
) -> OutputVerdict:
    value, dtype = expected.value, expected.value.dtype
    base = _failed(name, value, "")
    if value.numel() == 0:
        nothing = figures(value, value, dtype)
        return base.model_copy(
            update={
                "passed": True, "compat": True, "figures": nothing, "reference": nothing,
                "ratio_rows": 0.0, "ratio_all": 0.0,
                "looks_like": looks_like(0.0, expected.levels) if expected.levels else "",
            }
        )  # fmt: skip
    seen = _seen(got, expected, *budget.compat_tolerance(dtype, atol, rtol))
    excess = seen.rows.excess(dtype, expected.rounding)
    passed = excess.within() and not seen.stray
    mine, theirs = (sums.figures() for sums in seen.sums)
    verdict = base.model_copy(
        update={
            "passed": passed, "compat": seen.compat, "figures": mine, "reference": theirs,
            "ratio_rows": excess.rows, "ratio_all": excess.all,
            "looks_like": looks_like(mine.rms, expected.levels) if expected.levels else "",
        }
    )  # fmt: skip
    if passed:
        _, flat, here, true = seen.worst
        index = _unravel(flat, value.shape)
        fields = {"worst_index": index, "worst_got": here, "worst_expected": true}
        return verdict.model_copy(update=fields)
    update = _worst(name, _Wide.of(got, expected), excess)
    if words := lower_precision(mine.rms, expected.levels or {}):
        update["message"] += f". {words}"
    return verdict.model_copy(update=update)


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


def _worst(name: str, wide: _Wide, excess: budget.Excess) -> dict[str, Any]:
    """Fields that name the worst element of an output that fails, and say what it looks like."""
    got, truth, error = wide.got, wide.truth, wide.error()
    if bool(wide.stray.any()) or truth.dim() == 0:
        flat = int(error.flatten().argmax())
    else:
        row = excess.worst_row
        flat = row * truth.shape[-1] + int(budget.rows_of(error)[row].argmax())
    index = _unravel(flat, truth.shape)
    scale = float(truth[torch.isfinite(truth)].abs().mean())
    wrong = error > 1e-3 * scale + 1e-3 * truth.abs()
    words = pattern(got, truth, wrong)
    ratio = (
        f"{max(excess.rows, excess.all):.3g} times" if excess.rows == excess.rows else "NaN times"
    )
    message = (
        f"{name}{list(index)} is {float(got[index]):.9g}, expected {float(truth[index]):.9g}; "
        f"the error is {ratio} that of an honest computation (limit {budget.LIMIT:g})"
        + (f". {words[0].upper()}{words[1:]}" if words else "")
    )
    return {
        "worst_index": index, "worst_got": float(got[index]), "worst_expected": float(truth[index]),
        "wrong": int(wrong.sum()), "message": message,
    }  # fmt: skip


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
