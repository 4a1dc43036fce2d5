"""What the launchers share: checks of the operands, and their layout as the kernels take it."""

from __future__ import annotations

from typing import NamedTuple

import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
LAYOUTS = ("stacked", "split")
ACCURACIES = ("strict", "tf32")


class Sizes(NamedTuple):
    """M, R, H, and the columns of one head: of ``w_up_k``, of ``w_up_v`` and of ``k_pe`` (0
    without one)."""

    model: int
    rank: int
    heads: int
    k_dim: int
    v_dim: int
    rope_dim: int


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
    norm_weight: torch.Tensor | None = None,
    k_pe: torch.Tensor | None = None,
    layout: str = "stacked",
) -> Sizes:
    """The sizes of operands as `kernelproof.ops.mla_kv.mla_kv` takes them, weights in torch's form;
    an up-projection is ``(R, H*D)`` or ``(R, H, D)``.

    Raises:
        ValueError: the shapes do not fit together, or with ``layout`` "stacked", keys and values
            would differ in width.
    """
    if hidden.dim() < 1:
        raise ValueError("mla_kv: hidden is a scalar; it must be (..., M), such as (B, S, M)")
    if w_down.dim() != 2:
        raise ValueError(
            f"mla_kv: w_down has shape {tuple(w_down.shape)}; it must be a matrix (M, R)"
        )
    model, rank = w_down.shape
    if model != hidden.shape[-1]:
        raise ValueError(
            f"mla_kv: w_down has shape {tuple(w_down.shape)}, but hidden {tuple(hidden.shape)} "
            f"needs {hidden.shape[-1]} rows; the weights of nn.Linear are passed with "
            "weights='out_in', or as weight.T"
        )
    k_dim = _head_dim("w_up_k", w_up_k, rank, kv_heads)
    v_dim = _head_dim("w_up_v", w_up_v, rank, kv_heads)
    if norm_weight is not None:
        check_norm(norm_weight, w_down)
    rope_dim = 0
    if k_pe is not None:
        if k_pe.dim() != hidden.dim() + 1 or k_pe.shape[:-1] != (*hidden.shape[:-1], 1):
            raise ValueError(
                f"mla_kv: k_pe has shape {tuple(k_pe.shape)}; with hidden {tuple(hidden.shape)} it "
                f"must be {(*hidden.shape[:-1], 1)} and the rotary width: add the axis of heads "
                "with .unsqueeze(-2)"
            )
        rope_dim = k_pe.shape[-1]
    if layout == "stacked" and k_dim + rope_dim != v_dim:
        raise ValueError(
            f"mla_kv: a head's keys have {k_dim + rope_dim} columns ({k_dim} of w_up_k, {rope_dim} "
            f"of k_pe) and its values {v_dim}, which cannot be stacked; use layout='split'"
        )
    return Sizes(model, rank, kv_heads, k_dim, v_dim, rope_dim)


def check_norm(norm_weight: torch.Tensor, w_down: torch.Tensor) -> None:
    """Raises ValueError unless ``norm_weight`` is ``(R,)``."""
    rank = w_down.shape[1]
    if norm_weight.shape != (rank,):
        raise ValueError(
            f"mla_kv: norm_weight has shape {tuple(norm_weight.shape)}; it must be ({rank},), one "
            "factor for each column of w_down"
        )


def _head_dim(name: str, weight: torch.Tensor, rank: int, kv_heads: int) -> int:
    """The columns of one head in an up-projection; ValueError where its shape does not fit."""
    if weight.dim() not in (2, 3):
        raise ValueError(
            f"mla_kv: {name} has shape {tuple(weight.shape)}; it must be a matrix (R, H*D), or "
            "(R, H, D)"
        )
    if weight.shape[0] != rank:
        raise ValueError(
            f"mla_kv: {name} has shape {tuple(weight.shape)}; its first size must be R = {rank}, "
            "the columns of w_down; the weights of nn.Linear are passed with weights='out_in', or "
            "as weight.T"
        )
    if kv_heads < 1 or (weight.dim() == 2 and weight.shape[1] % kv_heads != 0):
        raise ValueError(
            f"mla_kv: kv_heads is {kv_heads}; it must be a positive divisor of the "
            f"{weight.shape[1]} columns of {name}"
        )
    if weight.dim() == 3 and weight.shape[1] != kv_heads:
        raise ValueError(
            f"mla_kv: {name} has shape {tuple(weight.shape)} and kv_heads is {kv_heads}; the "
            "second size must be the number of heads"
        )
    return weight.shape[2] if weight.dim() == 3 else weight.shape[1] // kv_heads


def check_kinds(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    k_pe: torch.Tensor | None = None,
) -> None:
    """Raises TypeError or ValueError unless all have one supported dtype and one device."""
    dtype, device = hidden.dtype, hidden.device
    if (
        dtype in DTYPES
        and dtype == w_down.dtype == w_up_k.dtype == w_up_v.dtype
        and device == w_down.device == w_up_k.device == w_up_v.device
        and norm_weight is None
        and k_pe is None
    ):
        return  # each call passes through here
    if dtype not in DTYPES:
        accepted = ", ".join(str(d) for d in DTYPES)
        raise TypeError(f"mla_kv: hidden is {dtype}; accepted are {accepted}: convert with .to()")
    for name, other in (
        ("w_down", w_down), ("w_up_k", w_up_k), ("w_up_v", w_up_v),
        ("norm_weight", norm_weight), ("k_pe", k_pe),
    ):  # fmt: skip
        if other is None:
            continue
        if other.dtype != dtype:
            raise TypeError(
                f"mla_kv: {name} is {other.dtype} and hidden {dtype}; all operands must have one "
                f"dtype: convert with .to()"
            )
        if other.device != device:
            raise ValueError(
                f"mla_kv: {name} is on {other.device} and hidden on {device}; move it with .to()"
            )


def check_choices(layout: str, accuracy: str = "strict") -> None:
    """Raises ValueError unless both are among `LAYOUTS` and `ACCURACIES`."""
    if layout in LAYOUTS and accuracy in ACCURACIES:
        return
    for name, value, accepted in (
        ("layout", layout, LAYOUTS), ("accuracy", accuracy, ACCURACIES)
    ):  # fmt: skip
        if value not in accepted:
            raise ValueError(
                f"mla_kv: {name} is {value!r}; accepted are {', '.join(map(repr, accepted))}"
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
