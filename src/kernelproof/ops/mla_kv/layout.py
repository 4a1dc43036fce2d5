"""What the launchers share: checks of the operands, and their layout as the kernels take it."""

from __future__ import annotations

from typing import NamedTuple

import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


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
        if size == 1:  # its stride addresses nothing
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


def check_shapes(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
) -> None:
    """Raises ValueError unless the shapes are (..., M), (M, R), (R, H*D) and (R, H*D)."""
    if hidden.dim() < 1:
        raise ValueError("mla_kv: hidden is a scalar; it must be (..., M), such as (B, S, M)")
    for name, weight in (("w_down", w_down), ("w_up_k", w_up_k), ("w_up_v", w_up_v)):
        if weight.dim() != 2:
            raise ValueError(
                f"mla_kv: {name} has shape {tuple(weight.shape)}; it must be a matrix: w_down "
                "(M, R), w_up_k and w_up_v (R, H*D)"
            )
    if w_down.shape[0] != hidden.shape[-1]:
        raise ValueError(
            f"mla_kv: w_down has shape {tuple(w_down.shape)}, but hidden {tuple(hidden.shape)} "
            f"needs {hidden.shape[-1]} rows; the weight of an nn.Linear is passed as weight.T"
        )
    if w_up_k.shape != w_up_v.shape or w_up_k.shape[0] != w_down.shape[1]:
        raise ValueError(
            f"mla_kv: w_up_k {tuple(w_up_k.shape)} and w_up_v {tuple(w_up_v.shape)} must both be "
            f"(R, H*D) with R = {w_down.shape[1]}, the columns of w_down; the weight of an "
            "nn.Linear is passed as weight.T"
        )
    if kv_heads < 1 or w_up_k.shape[1] % kv_heads != 0:
        raise ValueError(
            f"mla_kv: kv_heads is {kv_heads}; it must be a positive divisor of the "
            f"{w_up_k.shape[1]} columns of w_up_k"
        )


def check_kinds(
    hidden: torch.Tensor, w_down: torch.Tensor, w_up_k: torch.Tensor, w_up_v: torch.Tensor
) -> None:
    """Raises TypeError or ValueError unless all have one supported dtype and one device."""
    dtype, device = hidden.dtype, hidden.device
    if dtype not in DTYPES:
        accepted = ", ".join(str(d) for d in DTYPES)
        raise TypeError(f"mla_kv: hidden is {dtype}; accepted are {accepted}: convert with .to()")
    for name, weight in (("w_down", w_down), ("w_up_k", w_up_k), ("w_up_v", w_up_v)):
        if weight.dtype != dtype:
            raise TypeError(
                f"mla_kv: {name} is {weight.dtype} and hidden {dtype}; all operands must have one "
                f"dtype: convert with .to()"
            )
        if weight.device != device:
            raise ValueError(
                f"mla_kv: {name} is on {weight.device} and hidden on {device}; move it with .to()"
            )


def layout_of(
    hidden: torch.Tensor, w_down: torch.Tensor, w_up_k: torch.Tensor, w_up_v: torch.Tensor
) -> Layout:
    """The layout of operands with valid shapes whose hidden went through `as_two_axes`."""
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
