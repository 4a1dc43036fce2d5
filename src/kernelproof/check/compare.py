"""Judge one output tensor of one run."""

from __future__ import annotations

import math
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.check.blocks import Expected as Expected
from kernelproof.check.blocks import Wide, rows_of, summary
from kernelproof.check.explain import pattern
from kernelproof.check.figures import figures, looks_like, lower_precision
from kernelproof.check.values import on
from kernelproof.types import OutputVerdict

# Outputs with more elements are judged in parts, each of whole rows: a dozen temporaries in float64
# of 2^31 elements do not fit anywhere.
_PART = 1 << 26


def compare(
    name: str, got: Any, expected: Expected, atol: float | None, rtol: float | None,
    explained: bool = True,
) -> OutputVerdict:  # fmt: skip
    """Judge ``got``, an output leaf of the candidate, against ``expected``. ``explained``: with the
    pattern of what is wrong, which takes longer to find than the rest."""
    value = expected.value
    if isinstance(value, torch.Tensor) and value.numel() > _PART and value.dim() > 1:
        form = _form_problem(name, got, value)
        if form:
            return _failed(name, value, form)
        return _by_parts(name, got, expected, atol, rtol, explained)
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
        return compare(name, torch.view_as_real(got), real, atol, rtol, explained)
    if not value.is_floating_point():
        return _compare_exact(name, got, expected, explained)
    return _compare_floating(name, got, expected, atol, rtol, explained)


def _by_parts(
    name: str, got: torch.Tensor, expected: Expected, atol: float | None, rtol: float | None,
    explained: bool,
) -> OutputVerdict:  # fmt: skip
    """The worst part of a large output, its indices and counts in terms of the whole."""
    shape = expected.value.shape
    rows, width = math.prod(shape[:-1]), shape[-1]
    step = max(1, _PART // max(1, width))
    parts = [
        (begin, compare(name, mine, part, atol, rtol, explained))
        for begin, mine, part in rows_of(got, expected, step)
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
        if kind == "torch.Tensor":
            return f"{name} is sparse or in another layout, expected a dense torch.Tensor"
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


def _compare_exact(
    name: str, got: torch.Tensor, expected: Expected, explained: bool
) -> OutputVerdict:
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
    words = pattern(got.to(torch.float64), value.to(torch.float64), off) if explained else ""
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
    name: str, got: torch.Tensor, expected: Expected, atol: float | None, rtol: float | None,
    explained: bool,
) -> OutputVerdict:  # fmt: skip
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
    seen = summary(got, expected, *budget.compat_tolerance(dtype, atol, rtol))
    excess = budget.excess_of(seen.rows, seen.columns, dtype, expected.rounding)
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
    update = _worst(name, Wide.of(got, expected), excess, explained)
    if words := lower_precision(mine.rms, expected.levels or {}):
        update["message"] += f". {words}"
    return verdict.model_copy(update=update)


def _worst(name: str, wide: Wide, excess: budget.Excess, explained: bool) -> dict[str, Any]:
    """Fields that name the worst element of an output that fails, and say what it looks like."""
    got, truth, error = wide.got, wide.truth, wide.error()
    if bool(wide.stray.any()) or truth.dim() == 0:
        flat = int(error.flatten().argmax())
    elif excess.column:
        column = budget.rows_of(error)[:, excess.worst_row]
        flat = int(column.argmax()) * truth.shape[-1] + excess.worst_row
    else:
        row = excess.worst_row
        flat = row * truth.shape[-1] + int(budget.rows_of(error)[row].argmax())
    index = _unravel(flat, truth.shape)
    scale = float(truth[torch.isfinite(truth)].abs().mean())
    wrong = error > 1e-3 * scale + 1e-3 * truth.abs()
    words = pattern(got, truth, wrong) if explained else ""
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
