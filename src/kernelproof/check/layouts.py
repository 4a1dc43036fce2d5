"""The same inputs in other storage.

    transposed    the last two axes lie the other way round
    gap           rows (in one axis: elements) with unused memory between them
    sliced        unused memory between the slices along every axis but the first and the last
    offset        contiguous, but the address is no multiple of 16 bytes
    expanded      one axis has stride 0: its slices are one and the same memory

A candidate that reads them wrongly is wrong. One that refuses them with an exception is not: it
says that it wants contiguous inputs, and the verdict notes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from kernelproof.check.matrices import of_a_kind

# Elements of unused memory between rows; odd, so that rows lose their alignment too.
_GAP = 3


def relaid(name: str, inputs: list[Any]) -> list[Any] | None:
    """``inputs`` in layout ``name``, or None where no input has such a layout.

    Values stay the same, except in "expanded", where all slices along the first axis longer than
    one become the first slice.
    """
    changed = False

    def visit(leaf: Any) -> Any:
        nonlocal changed
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        made = LAYOUTS[name](leaf.detach()) if leaf.numel() > 1 else None
        changed = changed or made is not None
        return leaf if made is None else made

    result = tree_map(visit, inputs)
    return result if changed else None


def same_values(name: str) -> bool:
    """Whether layout ``name`` leaves the values as they are."""
    return name != "expanded"


def contiguous(inputs: list[Any]) -> list[Any]:
    """``inputs`` with every tensor contiguous and at the start of its storage."""
    return tree_map(  # type: ignore[no-any-return]
        lambda t: (
            t.clone(memory_format=torch.contiguous_format)
            if isinstance(t, torch.Tensor) and t.layout is torch.strided
            else t
        ),
        inputs,
    )


def _transposed(x: torch.Tensor) -> torch.Tensor | None:
    if x.dim() < 2 or x.shape[-1] < 2 or x.shape[-2] < 2:
        return None
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _gap(x: torch.Tensor) -> torch.Tensor | None:
    if x.dim() == 0:
        return None
    if x.dim() == 1:
        return _filled((x.shape[0], 2), x)[:, 0].copy_(x)
    room = _filled((*x.shape[:-1], x.shape[-1] + _GAP), x)
    return room[..., : x.shape[-1]].copy_(x)


def _sliced(x: torch.Tensor) -> torch.Tensor | None:
    """No two axes but the last two can be taken for one."""
    if x.dim() < 3:
        return None
    inner = x.shape[1:-1]
    room = _filled((x.shape[0], *(n + 1 for n in inner), x.shape[-1]), x)
    for axis, size in enumerate(inner, start=1):
        room = room.narrow(axis, 0, size)
    return room.copy_(x)


def _offset(x: torch.Tensor) -> torch.Tensor | None:
    if x.dim() == 0:
        return None
    # One element further: from a 64-byte boundary that is no multiple of 16 for elements below 16.
    room = _filled((x.numel() + 1,), x)
    return room[1:].view(x.shape).copy_(x)


def _expanded(x: torch.Tensor) -> torch.Tensor | None:
    if x.dim() < 2 or not x.is_floating_point():
        return None
    axis = next((i for i, n in enumerate(x.shape) if n > 1), None)
    if axis is None or axis == x.dim() - 1:
        return None
    # Equal rows are no symmetric and no triangular matrix.
    if axis == x.dim() - 2 and of_a_kind(x):
        return None
    return x.narrow(axis, 0, 1).contiguous().expand(x.shape)


def _filled(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """New memory in which unused places would show."""
    room = torch.empty(shape, dtype=like.dtype, device=like.device)
    if like.dtype == torch.bool:
        return room.fill_(True)
    inexact = like.is_floating_point() or like.is_complex()
    return room.fill_(torch.nan if inexact else torch.iinfo(like.dtype).max)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor | None]] = {
    "transposed": _transposed,
    "gap": _gap,
    "sliced": _sliced,
    "offset": _offset,
    "expanded": _expanded,
}
