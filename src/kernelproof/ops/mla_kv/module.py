"""The projection as a layer that loads the weights of published models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kernelproof.ops.mla_kv import mla_kv

# Names in DeepSeek's own inference code, of what its published weights call as this module does.
_OTHER_NAMES = {
    "wkv_a.": "kv_a_proj_with_mqa.",
    "kv_norm.": "kv_a_layernorm.",
    "wkv_b.": "kv_b_proj.",
}


class MLAProjection(nn.Module):
    """Keys and values of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Parameters, with the names and shapes of DeepSeek-V2, V3 and models that follow them, so that
    ``load_state_dict`` takes an attention layer's weights once those of other names are left out:

        kv_a_proj_with_mqa.weight   (R + P, M): the latent's rows, then the rotary part's
        kv_a_layernorm.weight       (R,); not there with ``norm_eps=None``
        kv_b_proj.weight            (H * (Dk + Dv), R): for each head its keys, then its values

    The names of DeepSeek's inference code (``wkv_a``, ``kv_norm``, ``wkv_b``) load as well.

    Args:
        hidden_size: M.
        rank: R.
        kv_heads: H.
        k_dim: Dk, without the rotary part ("qk_nope_head_dim").
        v_dim: Dv.
        rope_dim: P ("qk_rope_head_dim"); 0 for none.
        norm_eps: of the RMSNorm between the projections; None for no norm.
        accuracy, impl: as `mla_kv`.
    """

    def __init__(
        self,
        hidden_size: int,
        rank: int,
        kv_heads: int,
        k_dim: int,
        v_dim: int,
        *,
        rope_dim: int = 0,
        norm_eps: float | None = 1e-6,
        accuracy: Literal["strict", "tf32"] = "strict",
        impl: Literal["cpu", "cuda", "reference"] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        made: dict[str, Any] = dict(device=device, dtype=dtype)
        self.rank, self.kv_heads, self.k_dim, self.v_dim = rank, kv_heads, k_dim, v_dim
        self.rope_dim, self.accuracy, self.impl = rope_dim, accuracy, impl
        self.kv_a_proj_with_mqa = nn.Linear(hidden_size, rank + rope_dim, bias=False, **made)
        self.kv_a_layernorm = None if norm_eps is None else nn.RMSNorm(rank, norm_eps, **made)
        self.kv_b_proj = nn.Linear(rank, kv_heads * (k_dim + v_dim), bias=False, **made)
        register: Any = self.register_load_state_dict_pre_hook
        register(_rename)

    def forward(
        self, hidden: Tensor, rotate: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """``hidden (..., M)`` to keys ``(..., H, Dk + P)`` and values ``(..., H, Dv)``.

        ``rotate`` turns the rotary part ``(..., 1, P)`` by the tokens' positions; without it, it is
        used as it is projected. Under autocast the operands are converted as ``nn.Linear`` does.
        """
        down, up = self.kv_a_proj_with_mqa.weight, self.kv_b_proj.weight
        norm = self.kv_a_layernorm
        factors: Tensor | None = None if norm is None else norm.weight
        if torch.is_autocast_enabled(hidden.device.type):
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, down, up = hidden.to(dtype), down.to(dtype), up.to(dtype)
            factors = None if factors is None else factors.to(dtype)
        k_pe = None
        if self.rope_dim:
            k_pe = nn.functional.linear(hidden, down[self.rank :]).unsqueeze(-2)
            k_pe = k_pe if rotate is None else rotate(k_pe)
        return mla_kv(
            hidden, down[: self.rank], up, kv_heads=self.kv_heads, k_dim=self.k_dim,
            weights="out_in", norm_weight=factors,
            norm_eps=0.0 if norm is None or norm.eps is None else norm.eps,
            k_pe=k_pe, layout="split", accuracy=self.accuracy, impl=self.impl,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return (
            f"kv_heads={self.kv_heads}, k_dim={self.k_dim}, v_dim={self.v_dim}, "
            f"rope_dim={self.rope_dim}, accuracy={self.accuracy!r}, impl={self.impl!r}"
        )


def _rename(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Move entries under DeepSeek's other names to this module's."""
    for other, name in _OTHER_NAMES.items():
        for key in [k for k in state_dict if k.startswith(prefix + other)]:
            state_dict[prefix + name + key.removeprefix(prefix + other)] = state_dict.pop(key)
