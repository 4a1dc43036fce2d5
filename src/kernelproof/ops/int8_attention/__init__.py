"""Attention on int8 queries, keys and values with one fp32 scale per head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelproof.ops.int8_attention import contract
from kernelproof.ops.int8_attention.problem import reference

__all__ = ["int8_attention"]

_IMPLS = ("cpu", "cuda", "reference")


def int8_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    impl: str | None = None,
) -> Tensor:
    """``softmax(scale * q k^T) v`` of int8 tensors, each dequantised by its head's scale.

    Scores are exact integers until the softmax; the result has the accuracy of fp32 arithmetic
    (relative rms error against float64 of 1e-6 at most), whatever the sequence length.

    Args:
        q: (B, Sq, Hq, D) int8.
        k, v: (B, Skv, Hkv, D) int8; Hq is a multiple of Hkv, and query head h reads key head
            ``h // (Hq // Hkv)``.
        q_scale, k_scale, v_scale: (Hq,), (Hkv,), (Hkv,) float32, finite, of any sign, 0 included.
        causal: query t sees keys 0 .. t + Skv - Sq (the last query sees all keys). A query that
            sees no key gives zeros.
        scale: factor on the scores; ``1 / sqrt(D)`` by default.
        impl: ``None`` (by the device of the inputs), ``"cpu"``, ``"cuda"``, or ``"reference"``
            (eager PyTorch, slow, differentiable in the scales).

    Strides are free; where the innermost stride of q, k or v is not 1 (or a scale is strided),
    that tensor is copied.

    Returns:
        (B, Sq, Hq, D) float32, contiguous.

    Raises:
        TypeError: wrong dtypes.
        ValueError: shapes or devices do not fit together, ``impl`` is unknown or does not fit the
            device, ``scale`` is not finite, or D is above 65,535 (where int32 could overflow).
        RuntimeError: a scale requires a gradient and the implementation is a kernel.
        UnsupportedError: no C++ compiler, or no NVRTC.
    """
    if impl is not None and impl not in _IMPLS:
        raise ValueError(f"impl is {impl!r}; it may be None, 'cpu', 'cuda' or 'reference'")
    if scale is None:
        scale = 1.0 / math.sqrt(max(q.shape[-1], 1))
    elif not math.isfinite(scale):
        raise ValueError(f"scale is {scale}; it must be a finite number, or None for 1/sqrt(D)")
    if impl == "reference":
        contract.check(q, k, v, q_scale, k_scale, v_scale, limit_dim=False)
        return reference(q, k, v, q_scale, k_scale, v_scale, causal, scale)
    kind = q.device.type
    if impl is not None and impl != kind:
        raise ValueError(
            f"impl={impl!r} needs tensors on a {impl} device, and q is on {q.device}; move the "
            "tensors, or leave impl out to go by their device"
        )
    if kind not in ("cpu", "cuda", "meta"):
        raise ValueError(
            f"there are kernels for cpu and cuda, and q is on {q.device}; move the tensors, or use "
            'impl="reference"'
        )
    if torch.is_grad_enabled() and (
        q_scale.requires_grad or k_scale.requires_grad or v_scale.requires_grad
    ):
        raise RuntimeError(
            "int8_attention has no gradient, and a scale requires one: detach the scales, call it "
            'under torch.no_grad(), or use impl="reference"'
        )
    out: Tensor = torch.ops.kernelproof.int8_attention(
        q, k, v, q_scale, k_scale, v_scale, causal, scale
    )
    return out
