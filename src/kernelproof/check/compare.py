"""Judge one output tensor of one run."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.check.explain import pattern
from kernelproof.check.figures import figures, looks_like, lower_precision
from kernelproof.check.values import on
from kernelproof.types import OutputVerdict

# Outputs with more elements are judged in parts, each of whole rows: a dozen temporaries in float64
# of 2^31 elements do not fit anywhere.
_PART = 1 << 26
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
    flat = {
        field: getattr(expected, field).reshape(rows, width)
        for field in ("value", "truth", "response", "serial", "ties")
        if isinstance(getattr(expected, field), torch.Tensor)
    }
    mine = got.reshape(rows, width)
    parts = []
    for begin in range(0, rows, step):
        cut = slice(begin, begin + step)
        part = dataclasses.replace(expected, **{f: t[cut] for f, t in flat.items()})
        parts.append((begin, compare(name, mine[cut], part, atol, rtol)))
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


def _compare_floating(
    name: str, got: torch.Tensor, expected: Expected, atol: float | None, rtol: float | None
) -> OutputVerdict:
    value, dtype = expected.value, expected.value.dtype
    atol, rtol = budget.compat_tolerance(dtype, atol, rtol)
    wide, own = got.to(torch.float64), value.to(torch.float64)
    # In the output's own precision, as others do; torch does not compute in eight bits.
    both = (wide, own) if dtype.itemsize == 1 else (got, value)
    compat = bool(torch.allclose(*both, atol=atol, rtol=rtol, equal_nan=True))
    wide, own = _at_the_edge(wide, own, expected)
    # Where the working precision overflows, or the oracle does, the reference is the truth.
    finite = torch.isfinite(own)
    odd = ~finite | ~torch.isfinite(expected.truth)
    truth = torch.where(odd, own, expected.truth)
    matches = (wide == own) | (wide.isnan() & own.isnan())
    stray = (odd & ~finite & ~matches) | (~torch.isfinite(wide) & finite)
    excess = budget.excess(
        torch.where(finite, wide, 0.0),
        torch.where(finite, truth, 0.0),
        torch.where(finite, own, 0.0),
        torch.where(odd, 0.0, expected.response),
        dtype,
        None if expected.serial is None else torch.where(odd, 0.0, expected.serial),
        expected.rounding,
    )
    passed = excess.within() and not bool(stray.any())
    seen = torch.where(matches & odd, 0.0, wide), torch.where(matches & odd, 0.0, truth)
    mine = figures(*seen, dtype)
    theirs = figures(torch.where(odd, 0.0, own), torch.where(odd, 0.0, truth), dtype)
    verdict = OutputVerdict(
        name=name,
        shape=tuple(value.shape),
        dtype=str(dtype).removeprefix("torch."),
        passed=passed,
        compat=compat,
        figures=mine,
        reference=theirs,
        ratio_rows=excess.rows,
        ratio_all=excess.all,
        looks_like=looks_like(mine.rms, expected.levels) if expected.levels else "",
    )
    if value.numel() == 0:
        return verdict
    update = _worst(name, wide, truth, stray, excess, passed)
    if not passed and (words := lower_precision(mine.rms, expected.levels or {})):
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


def _worst(
    name: str,
    got: torch.Tensor,
    truth: torch.Tensor,
    stray: torch.Tensor,
    excess: budget.Excess,
    passed: bool,
) -> dict[str, Any]:
    """Fields that name the worst element and, for a failure, say what it looks like."""
    error = torch.nan_to_num((got - truth).abs(), nan=torch.inf)
    error = torch.where(stray, torch.inf, torch.where(torch.isfinite(truth), error, 0.0))
    if passed or bool(stray.any()) or truth.dim() == 0:
        flat = int(error.flatten().argmax())
    else:
        width = truth.shape[-1]
        row = excess.worst_row
        flat = row * width + int(budget.rows_of(error)[row].argmax())
    index = _unravel(flat, truth.shape)
    fields: dict[str, Any] = {
        "worst_index": index,
        "worst_got": float(got[index]),
        "worst_expected": float(truth[index]),
    }
    if passed:
        return fields
    scale = float(truth[torch.isfinite(truth)].abs().mean()) if truth.numel() else 0.0
    wrong = error > 1e-3 * scale + 1e-3 * truth.abs()
    words = pattern(got, truth, wrong)
    fields["wrong"] = int(wrong.sum())
    ratio = (
        f"{max(excess.rows, excess.all):.3g} times" if excess.rows == excess.rows else "NaN times"
    )
    fields["message"] = (
        f"{name}{list(index)} is {float(got[index]):.9g}, expected {float(truth[index]):.9g}; "
        f"the error is {ratio} that of an honest computation (limit {budget.LIMIT:g})"
        + (f". {words[0].upper()}{words[1:]}" if words else "")
    )
    return fields


def _unravel(flat: int, shape: torch.Size) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
