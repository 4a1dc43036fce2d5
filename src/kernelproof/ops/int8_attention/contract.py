"""The operator ``torch.ops.kernelproof.int8_attention``: schema, shapes, and who computes it."""

from __future__ import annotations

import torch
from torch import Tensor

# |score| <= 128 * 128 * D and differences of two scores must fit in int32.
MAX_HEAD_DIM = 65_535

NAME = "kernelproof::int8_attention"

torch.library.define(
    NAME,
    "(Tensor q, Tensor k, Tensor v, Tensor q_scale, Tensor k_scale, Tensor v_scale, "
    "bool causal, float scale) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    *,
    limit_dim: bool = True,
) -> None:
    """Raise ValueError or TypeError unless the tensors fit together as the operator needs.

    ``limit_dim=False`` is for the reference, whose floating-point scores cannot overflow.
    """
    if not (q.dtype == k.dtype == v.dtype == torch.int8):
        raise TypeError(
            f"q, k and v must be torch.int8, not {q.dtype}, {k.dtype} and {v.dtype}; "
            "quantise them first (value = int8 * scale of the head)"
        )
    if not (q_scale.dtype == k_scale.dtype == v_scale.dtype == torch.float32):
        raise TypeError(
            "q_scale, k_scale and v_scale must be torch.float32, not "
            f"{q_scale.dtype}, {k_scale.dtype} and {v_scale.dtype}; convert with .float()"
        )
    device = q.device
    if not (
        k.device == device
        and v.device == device
        and q_scale.device == device
        and k_scale.device == device
        and v_scale.device == device
    ):
        devices = [str(t.device) for t in (q, k, v, q_scale, k_scale, v_scale)]
        raise ValueError(f"all six tensors must be on one device, not on {', '.join(devices)}")
    if q.dim() != 4 or k.dim() != 4 or v.shape != k.shape:
        raise ValueError(
            "q must be (B, Sq, Hq, D), k and v both (B, Skv, Hkv, D), not "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    batch, _, heads, dim = q.shape
    kv_heads = k.shape[2]
    if k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(
            f"q {tuple(q.shape)} and k {tuple(k.shape)} must agree in B (first) and D (last)"
        )
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads != 0):
        raise ValueError(
            f"the {heads} heads of q must be a multiple of the {kv_heads} heads of k and v"
        )
    if q_scale.shape != (heads,) or k_scale.shape != (kv_heads,) or v_scale.shape != (kv_heads,):
        raise ValueError(
            f"q_scale must be ({heads},), k_scale and v_scale ({kv_heads},), not "
            f"{tuple(q_scale.shape)}, {tuple(k_scale.shape)} and {tuple(v_scale.shape)}"
        )
    if limit_dim and dim > MAX_HEAD_DIM:
        raise ValueError(
            f"the head dimension is {dim}; up to {MAX_HEAD_DIM} the int32 scores cannot overflow, "
            'beyond that use impl="reference"'
        )


def unit_stride(x: Tensor) -> Tensor:
    """``x``, or a copy where neighbours in the head dimension are not neighbours in memory."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    check(q, k, v, q_scale, k_scale, v_scale)
    return torch.empty(q.shape, dtype=torch.float32, device=q.device)


torch.library.register_fake(NAME, _fake)


@torch.library.impl(NAME, "CPU")
def _cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    from kernelproof.ops.int8_attention import cpu

    return cpu.launch(q, k, v, q_scale, k_scale, v_scale, causal, scale)


@torch.library.impl(NAME, "CUDA")
def _cuda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    from kernelproof.ops.int8_attention import cuda

    return cuda.launch(q, k, v, q_scale, k_scale, v_scale, causal, scale)
