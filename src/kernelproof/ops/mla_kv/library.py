"""The projection by PyTorch's own matrix products, where they are faster than the kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernelproof.ops.mla_kv.reference import normalised


def packed(w_up_k: Tensor, w_up_v: Tensor, heads: int) -> Tensor | None:
    """The matrix ``(R, H * (Dk + Dv))`` that ``w_up_k (R, H, Dk)`` and ``w_up_v (R, H, Dv)`` are
    views of, in the order of heads, keys before values; None where there is none."""
    if w_up_k.dim() != 3 or w_up_v.dim() != 3 or w_up_k.stride() != w_up_v.stride():
        return None
    k_dim, both = w_up_k.shape[2], w_up_k.shape[2] + w_up_v.shape[2]
    row, head, column = w_up_k.stride()
    begins = w_up_k.storage_offset() + k_dim * column
    if (
        0 in w_up_k.shape
        or 0 in w_up_v.shape
        or head != both * column
        or w_up_v.storage_offset() != begins
        or w_up_v.untyped_storage().data_ptr() != w_up_k.untyped_storage().data_ptr()
    ):
        return None
    return w_up_k.as_strided((w_up_k.shape[0], heads * both), (row, column))


def project_library(
    hidden: Tensor,
    w_down: Tensor,
    w_up_k: Tensor,
    w_up_v: Tensor,
    *,
    kv_heads: int,
    norm_weight: Tensor | None,
    norm_eps: float,
    k_pe: Tensor | None,
    layout: str,
) -> Tensor | tuple[Tensor, Tensor]:
    """`kernelproof.ops.mla_kv.mla_kv` for operands that are valid. The latent is rounded to their
    dtype, as in the reference; packed up-projections are one product."""
    *leading, model = hidden.shape
    tokens = math.prod(leading)
    latent = hidden.reshape(tokens, model) @ w_down
    if norm_weight is not None:
        latent = normalised(latent, norm_weight, norm_eps)
    k_dim, v_dim = (w.shape[1:].numel() // kv_heads for w in (w_up_k, w_up_v))
    rope_dim = 0 if k_pe is None else k_pe.shape[-1]
    if layout == "stacked":
        out = hidden.new_empty((tokens, 2, kv_heads, v_dim))
        k, v = out[:, 0], out[:, 1]
    else:
        k = hidden.new_empty((tokens, kv_heads, k_dim + rope_dim))
        v = hidden.new_empty((tokens, kv_heads, v_dim))
    joined = packed(w_up_k, w_up_v, kv_heads)
    if joined is not None:
        both = (latent @ joined).view(tokens, kv_heads, k_dim + v_dim)
        k[..., :k_dim] = both[..., :k_dim]
        v.copy_(both[..., k_dim:])
    else:
        _product(latent, w_up_k.flatten(1), k[..., :k_dim])
        _product(latent, w_up_v.flatten(1), v)
    if k_pe is not None:
        k[..., k_dim:] = k_pe.reshape(tokens, 1, rope_dim)
    if layout == "stacked":
        return out.view(*leading, 2, kv_heads, v_dim)
    return k.view(*leading, *k.shape[1:]), v.view(*leading, *v.shape[1:])


def _product(latent: Tensor, weight: Tensor, out: Tensor) -> None:
    """``latent (N, R) @ weight (R, H*D)`` into ``out (N, H, D)``, in place where its heads join."""
    if out.stride(1) == out.shape[2]:
        torch.mm(latent, weight, out=out.flatten(1))
    else:
        out.copy_((latent @ weight).view(out.shape))
