"""Copies of tensors that keep their strides, and strides by which elements share a place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernelproof import staging

if TYPE_CHECKING:
    import torch


def copy_like(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of ``tensor`` on ``device`` with its shape, dtype and strides, gaps and strides of 0
    included.

    ``Tensor.to`` and ``clone`` close gaps and write out what is expanded, so that a kernel that
    ignores strides would never be given any.
    """
    import torch

    if tensor.layout is not torch.strided:
        return tensor.to(device, copy=True)
    if tensor.is_contiguous():
        return moved(tensor, device)
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    # Elements that share one place hold one value; torch refuses to write them all.
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    copy[once].copy_(tensor[once])
    return copy


def moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy of ``tensor`` on ``device``, contiguous where it is; gigabytes go by `staging`."""
    import torch

    plain = type(tensor) is torch.Tensor and not tensor.requires_grad
    if not plain or not tensor.is_contiguous() or not staging.large(tensor):
        return tensor.to(device, copy=True)
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    staging.copy(copy, tensor)
    return copy


def overlaps(tensors: Sequence[Any]) -> list[list[int]]:
    """Index pairs of tensors whose elements lie at the same addresses: ``[i, i]`` for one that is
    expanded, or otherwise has two elements in one place; ``[i, j]`` for two that begin together."""
    import torch

    found: list[list[int]] = []
    begins: dict[int, int] = {}
    for number, tensor in enumerate(tensors):
        if tensor.layout is not torch.strided or not tensor.numel():
            continue
        if torch._debug_has_internal_overlap(tensor) == 1:
            found.append([number, number])
        if tensor.data_ptr() in begins:
            found.append([begins[tensor.data_ptr()], number])
        begins.setdefault(tensor.data_ptr(), number)
    return found
