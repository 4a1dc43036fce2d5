"""Value families: other inputs for a case, drawn to show what normal numbers hide.

    exchanged         the largest and the smallest number of each input change places
    large, tiny       all floating inputs times a power of two: overflow, lost eps, wrong units
    zeros             a third of the numbers are exactly zero
    sparse            one number of each row of the first input is left, the others are zero
    cancellation      the second half of a row is nearly the first half's negative
    constant rows     every row holds one number: no variance, all ties
    NaN and infinity  one of each in one input: what does not depend on them must not see them
    integers          integer inputs take each of their observed values equally often
    weights           weights and buffers that are all one number are given different ones

What an input may be is read from how it was drawn, because a problem says nothing about it: the
sign of non-negative numbers, sums of one (probabilities), few distinct numbers (labels, masks),
order, and what makes a matrix symmetric or triangular are kept, and integers only take observed
values, so that an index stays in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelproof.check.matrices import of_a_kind

# Powers of two: the digits of the numbers stay as they were. 2^8 takes normal numbers past the
# overflow of exp (88) and of squares in fp16 (255), and three such inputs multiplied stay finite.
LARGE = 2.0**8
# Below the square root of the usual eps (1e-5); in fp16 small numbers soon have few digits left.
TINY = 2.0**-12
TINY_FP16 = 2.0**-6
_ZERO_SHARE = 0.33
# The cancelling half differs by this much from the other's negative.
_REMAINDER = 2.0**-8
# Up to so many distinct numbers among at least _MANY are labels rather than measurements.
_FEW, _MANY = 8, 32

WEIGHTS = "weights"
NAN = "NaN and infinity"

# A family turns one tensor into another; None leaves the tensor as it is.
_Make = Callable[[torch.Tensor, torch.Generator], "torch.Tensor | None"]


def kind(x: torch.Tensor) -> str:
    """What a family may do to ``x``: "real", "positive" (none below zero), "ordered" (scaling
    only), "integer", or "fixed" (nothing)."""
    if x.numel() == 0 or x.is_complex():
        return "fixed"
    if not x.is_floating_point():
        return "integer"
    wide = x.detach().to(torch.float64)
    if not bool(torch.isfinite(wide).all()):
        return "fixed"
    if x.numel() >= _MANY and _distinct(wide.flatten()[:4096]) <= _FEW:
        return "fixed"
    positive = bool((wide >= 0).all())
    if positive and any(_sums_to_one(wide, axis) for axis in range(x.dim())):
        return "fixed"
    if x.dim() == 0 or x.numel() == 1 or (x.dim() == 1 and bool((wide.diff() >= 0).all())):
        return "ordered"
    if of_a_kind(x):
        return "ordered"
    return "positive" if positive else "real"


def _distinct(x: torch.Tensor) -> int:
    return int(torch.unique(x).numel())


def _sums_to_one(x: torch.Tensor, axis: int) -> bool:
    if x.shape[axis] < 2:
        return False
    return bool(((x.sum(dim=axis) - 1).abs() < 1e-2).all())


def names(ties: bool) -> tuple[str, ...]:
    """The families in the order in which they run.

    Args:
        ties: False where the outputs hold integers: an index is right in several ways where
            numbers are equal, so families that make numbers equal say nothing.
    """
    plain = ("exchanged", "large", "integers", WEIGHTS)
    return plain if not ties else (*_MAKERS, NAN, "integers", WEIGHTS)


def varied(name: str, inputs: list[Any], seed: int) -> Iterator[list[Any]]:
    """Versions of ``inputs`` in family ``name`` (not "weights"), the most thorough first; the first
    one on which the reference is fit to be compared is the one to use. Empty where the family
    would change nothing."""
    if name == "integers":
        yield from _changed(inputs, seed, range(_count(inputs)), _resampled)
        return
    floating = [i for i, leaf in enumerate(tree_leaves(inputs)) if _open_to(leaf)]
    if name == NAN:
        for i in floating:
            yield from _changed(inputs, seed, [i], _with_nan)
        return
    make = _MAKERS[name]
    if name == "sparse":
        floating = floating[:1]
    # A factor such as a gate may not bear what the others do: leave out the last ones in turn.
    for count in range(len(floating), 0, -1):
        yield from _changed(inputs, seed, floating[:count], make)


def weights(state: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor] | None:
    """``state`` with different numbers in every floating tensor that holds one number throughout,
    as default initialisation leaves the weights of normalisations; None where there is none.

    Positive numbers stay positive (a running variance), zeros become normal numbers of size 0.5.
    """
    draw = torch.Generator().manual_seed(seed)
    found: dict[str, torch.Tensor] = {}
    for name, t in state.items():
        if not t.is_floating_point() or t.numel() < 2 or t.dtype.itemsize == 1:
            continue
        if bool((t != t.flatten()[0]).any()):
            continue
        first = float(t.flatten()[0])
        if first == 0:
            found[name] = (0.5 * torch.randn(t.shape, generator=draw)).to(t.dtype)
        elif abs(first) < float("inf"):
            found[name] = (first * (0.5 + torch.rand(t.shape, generator=draw))).to(t.dtype)
    return {**state, **found} if found else None


def meaningful(name: str, outputs: list[Any]) -> bool:
    """Whether the reference's ``outputs`` (leaves) in family ``name`` can judge a candidate: they
    are finite; in the NaN family some of them are."""
    floating = [t for t in outputs if isinstance(t, torch.Tensor) and _inexact(t) and t.numel()]
    finite = [torch.isfinite(t) for t in floating]
    if name == NAN:
        return any(bool(f.any()) for f in finite)
    return all(bool(f.all()) for f in finite)


def ill_conditioned(truth: Any, value: Any, response: Any) -> bool:
    """Whether the reference's own error, or its response to one-ulp perturbations, leaves fewer
    than half of the digits of the output's dtype: then errors are not small, and their size says
    nothing about honesty."""
    if not isinstance(response, torch.Tensor) or not value.is_floating_point():
        return False
    size = _rms(truth)
    limit = float(torch.finfo(value.dtype).eps) ** 0.5 * size
    moved = max(_rms(response), _rms(value.to(torch.float64) - truth))
    return size > 0 and not moved <= limit


def excused(got: Any, value: Any) -> tuple[Any, int]:
    """``got`` with the reference's number wherever that is NaN or infinite, and at how many places
    ``got`` was finite there.

    A kernel may skip what the reference multiplies by zero (a causal mask), form a maximum in which
    a NaN loses, or get NaN where the reference has a zero in the same row, as by inf * (1 / inf):
    honest work. So in rows of the last axis in which the reference has a number that is not finite,
    others may be none either; finite ones must be right.
    """
    same = isinstance(got, torch.Tensor) and isinstance(value, torch.Tensor)
    if not same or got.shape != value.shape or got.dtype != value.dtype or not _inexact(value):
        return got, 0
    odd = ~torch.isfinite(value)
    lost = int((odd & torch.isfinite(got.to(value.device))).sum())
    row = odd.any(dim=-1, keepdim=True) if odd.dim() else odd
    spread = row & ~torch.isfinite(got.to(value.device))
    return torch.where(odd | spread, value, got.to(value.device)), lost


def _inexact(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _rms(x: torch.Tensor) -> float:
    finite = torch.nan_to_num(x.abs().to(torch.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return float(finite.square().mean().sqrt()) if x.numel() else 0.0


def _open_to(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and kind(leaf) in ("real", "positive", "ordered")


def _count(inputs: list[Any]) -> int:
    return len(tree_leaves(inputs))


def _changed(inputs: list[Any], seed: int, indices: Any, make: _Make) -> Iterator[list[Any]]:
    """``inputs`` with ``make`` applied to the leaves ``indices``, if that changes any."""
    draw = torch.Generator().manual_seed(seed)
    wanted = set(indices)
    number = -1
    any_changed = False

    def visit(leaf: Any) -> Any:
        nonlocal number, any_changed
        number += 1
        if number not in wanted or not isinstance(leaf, torch.Tensor):
            return leaf
        given = leaf.detach()
        # torch does not compute in eight bits.
        eight = given.is_floating_point() and given.dtype.itemsize == 1
        made = make(given.float() if eight else given, draw)
        any_changed = any_changed or made is not None
        return leaf if made is None else made.to(leaf.dtype)

    result = tree_map(visit, inputs)
    if any_changed:
        yield result


def _exchanged(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    """All but two elements stay where they were, and so does every sum over all of them: whoever
    knows inputs by some elements or by a sum takes these for the others."""
    if kind(x) == "ordered" or x.numel() < 2:
        return None
    flat = x.flatten().clone()
    ends = torch.stack((flat.argmin(), flat.argmax()))
    flat[ends] = flat[ends.flip(0)]
    return flat.view(x.shape)


def _large(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    return x * LARGE


def _tiny(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    return x * (TINY_FP16 if x.dtype == torch.float16 else TINY)


def _zeros(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    if kind(x) == "ordered":
        return None
    drop = torch.rand(x.shape, generator=draw) < _ZERO_SHARE
    return x.masked_fill(drop, 0.0)


def _sparse(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    if kind(x) == "ordered" or x.shape[-1] < 2:
        return None
    kept = torch.randint(x.shape[-1], (*x.shape[:-1], 1), generator=draw)
    return torch.zeros_like(x).scatter(-1, kept, x.gather(-1, kept))


def _cancelling(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    if kind(x) != "real" or x.shape[-1] < 4:
        return None
    half = x.shape[-1] // 2
    y = x.clone()
    first = x[..., :half]
    y[..., half : 2 * half] = -(first + _REMAINDER * x[..., half : 2 * half])
    return y


def _constant_rows(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    if kind(x) == "ordered" or x.shape[-1] < 2:
        return None
    # Eighths: a sum of many of them is exact in any order, so that a mean is the number itself.
    one = (x[..., :1] * 8).round() / 8
    rows = torch.where(one == 0, torch.full_like(one, 0.125), one).expand(x.shape)
    made: torch.Tensor = rows.contiguous()
    return made


def _with_nan(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    if x.numel() < 2 or kind(x) == "ordered":
        return None
    where = torch.randperm(x.numel(), generator=draw)[:2]
    flat = x.clone().flatten()
    flat[where] = torch.tensor([torch.nan, torch.inf], dtype=x.dtype)
    return flat.view(x.shape)


def _resampled(x: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    """Every observed value equally often. Left alone: what is sorted along its rows (offsets,
    positions, prefix and causal masks); what holds each value once is permuted (scatter)."""
    if kind(x) != "integer" or x.numel() < 2 or x.dim() == 0:
        return None
    steps = x.to(torch.int64).diff(dim=-1)
    if bool((steps >= 0).all()) or bool((steps <= 0).all()):
        return None
    values: torch.Tensor = torch.unique(x)
    if values.numel() == x.numel():
        return x.flatten()[torch.randperm(x.numel(), generator=draw)].view(x.shape)
    made = values[torch.randint(values.numel(), (x.numel(),), generator=draw)]
    # The extremes occur for sure.
    ends = torch.randperm(x.numel(), generator=draw)[:2]
    made[ends] = torch.stack((values[0], values[-1]))
    return made.view(x.shape)


_MAKERS: dict[str, _Make] = {
    "exchanged": _exchanged,
    "large": _large,
    "tiny": _tiny,
    "zeros": _zeros,
    "sparse": _sparse,
    "cancellation": _cancelling,
    "constant rows": _constant_rows,
}
