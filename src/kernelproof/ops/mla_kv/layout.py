"""What the launchers share: the operands' layout as the kernels take it."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Layout(NamedTuple):
    """Sizes, and strides in elements.

    Token n starts at ``(n // inner) * outer_stride + (n % inner) * inner_stride`` of hidden.
    """

    tokens: int
    inner: int
    outer_stride: int
    inner_stride: int
    hidden_column: int
    model: int
    rank: int
    columns: int
    down_row: int
    down_column: int
    k_row: int
    k_column: int
    v_row: int
    v_column: int


def merged_dims(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(size, stride) of the fewest axes that address the same elements in the same order."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = (axes[-1][0] * size, stride)
        else:
            axes.append((size, stride))
    return axes


def as_two_axes(hidden: torch.Tensor) -> torch.Tensor:
    """``hidden``, or a contiguous copy where its leading axes do not merge into two."""
    if hidden.dim() <= 3 or len(merged_dims(hidden.shape[:-1], hidden.stride()[:-1])) <= 2:
        return hidden
    return hidden.contiguous()


def layout_of(
    hidden: torch.Tensor, w_down: torch.Tensor, w_up_k: torch.Tensor, w_up_v: torch.Tensor
) -> Layout:
    """The layout of operands whose hidden went through `as_two_axes`."""
    axes = merged_dims(hidden.shape[:-1], hidden.stride()[:-1])
    axes = [(1, 0)] * (2 - len(axes)) + axes
    (outer, outer_stride), (inner, inner_stride) = axes
    return Layout(
        outer * inner,
        max(inner, 1),
        outer_stride,
        inner_stride,
        hidden.stride(-1),
        hidden.shape[-1],
        w_down.shape[1],
        w_up_k.shape[1],
        *w_down.stride(),
        *w_up_k.stride(),
        *w_up_v.stride(),
    )
