"""The projection in plain PyTorch: any floating dtype, any device, with gradients."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.layout import (
    Sizes,
    check_choices,
    check_kinds,
    check_shapes,
)


def project_reference(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: torch.Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """What `kernelproof.ops.mla_kv.mla_kv` computes, as a chain of PyTorch's operations. Weights
    are in torch's form. The latent is rounded to the operands' dtype, and the norm is taken in
    float32 (float64 for float64). ``accuracy`` changes nothing: products follow the settings of
    ``torch.backends``.

    Raises:
        TypeError, ValueError: the operands do not fit together.
    """
    sizes = _checked(hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, k_pe, layout, accuracy)
    latent = hidden @ w_down
    if norm_weight is not None:
        latent = normalised(latent, norm_weight, norm_eps)
    k = (latent @ w_up_k.flatten(1)).unflatten(-1, (kv_heads, sizes.k_dim))
    v = (latent @ w_up_v.flatten(1)).unflatten(-1, (kv_heads, sizes.v_dim))
    if k_pe is not None:
        k = torch.cat((k, k_pe.expand(*hidden.shape[:-1], kv_heads, sizes.rope_dim)), dim=-1)
    return torch.stack((k, v), dim=-3) if layout == "stacked" else (k, v)


def explain_reference(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    *,
    kv_heads: int,
    norm_weight: torch.Tensor | None = None,
    norm_eps: float = 1e-6,
    k_pe: torch.Tensor | None = None,
    layout: str = "stacked",
    accuracy: str = "strict",
) -> str:
    """What `project_reference` does with these operands. Raises what it raises."""
    _checked(hidden, w_down, w_up_k, w_up_v, kv_heads, norm_weight, k_pe, layout, accuracy)
    return f"mla_kv as a chain of PyTorch's operations on {hidden.device}: impl='reference'"


def _checked(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
    norm_weight: torch.Tensor | None,
    k_pe: torch.Tensor | None,
    layout: str,
    accuracy: str,
) -> Sizes:
    check_choices(layout, accuracy)
    check_kinds(hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe)
    return check_shapes(
        hidden, w_down, w_up_k, w_up_v,
        kv_heads=kv_heads, norm_weight=norm_weight, k_pe=k_pe, layout=layout,
    )  # fmt: skip


def normalised(latent: torch.Tensor, norm_weight: torch.Tensor, norm_eps: float) -> torch.Tensor:
    """``latent (..., R)`` divided by its root mean square, times ``norm_weight (R,)``: Zhang and
    Sennrich, arXiv:1910.07467, with eps under the root. Rounded once to latent's dtype."""
    wide = latent if latent.dtype == torch.float64 else latent.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm_eps)
    return (wide * scale * norm_weight).to(latent.dtype)
