"""NaN and infinity that spread further than in the reference: a bug, or an algorithm that adds
numbers and takes them away again, as Winograd's and Strassen's products do and a Fourier transform.

A kernel that multiplies by zero what it should leave out is told from these by finite numbers in
the same places. Where zero is the factor, no bit of the output hangs on them. Where they cancel,
the output is right to rounding, and the rounding is another one for each of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

# Beside the largest number of the input: eight bits of what cancels with it are then rounded off,
# so that hardly an output keeps its bits.
LARGE = 2.0**8
# Of the outputs to which they spread, how many must feel finite numbers. A ReLU or a maximum hides
# them in many, and in many others zero is the factor, as in a product with a transform's matrix of
# 0, 1 and -1; where nothing cancels, no output feels them.
_SHARE = 0.01


def places(got: Any, value: Any) -> torch.Tensor | None:
    """Where ``got`` is no finite number and the reference's ``value`` is; None where that is
    nowhere."""
    same = isinstance(got, torch.Tensor) and isinstance(value, torch.Tensor)
    if not same or got.shape != value.shape or got.dtype != value.dtype:
        return None
    if not value.is_floating_point():
        return None
    found = torch.isfinite(value) & ~torch.isfinite(got.to(value.device))
    return found if bool(found.any()) else None


def filled(got: Any, value: Any) -> Any:
    """``got`` with the reference's numbers at its `places`."""
    found = places(got, value)
    return got if found is None else torch.where(found, value, got.to(value.device))


def finite(inputs: list[Any], seed: int, factor: float = 0.0) -> list[Any]:
    """``inputs`` with ordinary numbers of the same tensor for those that are not finite; or, with a
    ``factor``, with so many times its largest."""
    draw = torch.Generator().manual_seed(seed)

    def visit(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        odd = ~torch.isfinite(leaf)
        if not bool(odd.any()) or bool(odd.all()):
            return leaf
        ordinary, count = leaf[~odd], int(odd.sum())
        chosen = ordinary[torch.randint(ordinary.numel(), (count,), generator=draw)]
        if factor:
            chosen = (factor * ordinary.abs().max()).expand(count)
        made = leaf.clone()
        made[odd] = chosen
        return made

    return tree_map(visit, inputs)  # type: ignore[no-any-return]


def felt(
    spread: list[torch.Tensor | None], ordinary: list[Any], again: list[Any], large: list[Any]
) -> bool:
    """Whether outputs to which NaN or infinity ``spread`` hang on the numbers there.

    Args:
        ordinary, again: outputs of two calls with the same numbers there; what differs between
            them, as sums by atomics do, tells nothing.
        large: outputs with another number there.
    """
    changed = total = 0
    for where, *leaves in zip(spread, ordinary, again, large, strict=True):
        if where is not None:
            one, two, other = (leaf.to(where.device)[where] for leaf in leaves)
            total += one.numel()
            changed += int(((one == two) & (one != other)).sum())
    return total > 0 and changed >= _SHARE * total
