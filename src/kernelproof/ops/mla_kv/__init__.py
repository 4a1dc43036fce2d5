"""Latent key/value projection of multi-head latent attention: keys and values in one pass."""

from __future__ import annotations

import math
from typing import Literal

import torch

from kernelproof.ops.mla_kv.contract import mla_kv_op
from kernelproof.ops.mla_kv.layout import check_kinds, check_shapes

__all__ = ["mla_kv"]

_IMPLS = (None, "cpu", "cuda", "reference")


def mla_kv(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
    impl: Literal["cpu", "cuda", "reference"] | None = None,
) -> torch.Tensor:
    """Keys and values from a low-rank latent of each token.

        latent = hidden @ w_down
        k = latent @ w_up_k;  v = latent @ w_up_v

    This is the joint key/value compression of multi-head latent attention (DeepSeek-V2,
    arXiv:2405.04434, equations 9 to 11), written straight into one tensor.

    Args:
        hidden: ``(..., M)``, such as ``(B, S, M)``.
        w_down: ``(M, R)``.
        w_up_k, w_up_v: ``(R, H*D)``; column ``h*D + d`` belongs to head h.
        kv_heads: H, a divisor of the columns of ``w_up_k``.
        impl: None runs the kernel of the operands' device. ``"cpu"`` and ``"cuda"`` insist on
            one; ``"reference"`` is the formula in PyTorch, on any device and differentiable.

    All operands have one dtype (float32, float64, float16 or bfloat16) and one device; any
    strides. Sums are formed in float32 (float64 for float64, never TF32), and the kernels keep
    the latent in that precision, where the reference rounds it to the operands' dtype.

    Returns:
        ``(..., 2, H, D)``, contiguous: keys at index 0 of the axis of size 2, values at index 1.

    Raises:
        TypeError: the dtypes differ or are not supported.
        ValueError: shapes or devices do not fit together, or ``impl`` is unknown or does not fit
            the device.
        RuntimeError: a gradient is asked for; the kernels have none.
    """
    if impl not in _IMPLS:
        raise ValueError(f"mla_kv: impl is {impl!r}; accepted are {', '.join(map(repr, _IMPLS))}")
    if impl == "reference":
        check_kinds(hidden, w_down, w_up_k, w_up_v)
        check_shapes(hidden, w_down, w_up_k, w_up_v, kv_heads=kv_heads)
        return _reference(hidden, w_down, w_up_k, w_up_v, kv_heads)
    device = hidden.device.type
    if device not in ("cpu", "cuda", "meta") or (impl is not None and device != impl):
        raise ValueError(
            f"mla_kv: no kernel for hidden on {hidden.device} with impl={impl!r}; move the "
            "operands to a CPU or CUDA device, or use impl='reference'"
        )
    if torch.is_grad_enabled() and (
        hidden.requires_grad or w_down.requires_grad or w_up_k.requires_grad or w_up_v.requires_grad
    ):
        raise RuntimeError(
            "mla_kv: an operand requires grad, and the kernels have no backward; use "
            "impl='reference', detach the operand, or call under torch.no_grad()"
        )
    out: torch.Tensor = mla_kv_op(hidden, w_down, w_up_k, w_up_v, kv_heads)
    return out


def _reference(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
) -> torch.Tensor:
    from kernelproof.ops.mla_kv.problem import Model

    *leading, model = hidden.shape
    rows = hidden.reshape(1, math.prod(leading), model)
    out: torch.Tensor = Model(kv_heads)(rows, w_down, w_up_k, w_up_v)
    return out.view(*leading, 2, kv_heads, w_up_k.shape[1] // kv_heads)
