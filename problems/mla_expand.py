"""From the latent of multi-head latent attention to keys and values: norm, up-projection, concat.

    n[t]    = latent[t] / sqrt(mean(latent[t]^2) + eps) * weight
    u[t, h] = w_up[h] @ n[t]                               (Dn + Dv,)
    k[t, h] = concat(u[t, h, :Dn], k_pe[t])                (Dn + P,)
    v[t, h] = u[t, h, Dn:]                                 (Dv,)

``latent`` is (T, R) and ``k_pe`` is (T, P), the rotary part, which all heads share; both are
columns of one (T, R + P) tensor, as the down-projection leaves it. ``weight`` is (R,), ``w_up`` is
(H, Dn + Dv, R): the rows of a head are together, its keys before its values. The result is
``(k, v)``, (T, H, Dn + P) and (T, H, Dv). The norm is taken in fp32 and rounded once to the inputs'
dtype.

Traps for kernel writers:

- ``latent`` has rows with a gap: the row stride is R + P. A copy to close it costs a launch.
- The rows of ``w_up`` interleave keys and values by head; "first all keys" is another layout with
  the same shape.
- The norm covers the latent only, not the rotary part.
- ``k`` and ``v`` are two tensors: views of one (T, H, Dn + P + Dv) tensor would have gaps.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, nope_dim: int, eps: float = 1e-6):
        super().__init__()
        self.nope_dim, self.eps = nope_dim, eps

    def forward(self, latent, k_pe, weight, w_up):
        wide = latent.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        normed = (wide * scale * weight.float()).to(latent.dtype)
        heads, columns, rank = w_up.shape
        up = (normed @ w_up.reshape(-1, rank).T).view(-1, heads, columns)
        shared = k_pe.unsqueeze(1).expand(-1, heads, -1)
        k = torch.cat((up[..., : self.nope_dim], shared), dim=-1)
        return k, up[..., self.nope_dim :].contiguous()


def get_inputs(
    tokens=30,
    rank=48,
    rope_dim=16,
    heads=4,
    nope_dim=32,
    value_dim=24,
    scale=1.0,
    eps=1e-6,
    dtype=torch.float32,
):
    # `eps` is the constructor's; it is named here because one case sets it.
    joined = (scale * torch.randn(tokens, rank + rope_dim)).to(dtype)
    weight = 1 + 0.3 * torch.randn(rank)
    w_up = torch.randn(heads, nope_dim + value_dim, rank) / max(rank, 1) ** 0.5
    return [joined[:, :rank], joined[:, rank:], weight.to(dtype), w_up.to(dtype)]


def get_init_inputs(nope_dim=32, eps=1e-6):
    return [nope_dim, eps]


CASES = {
    "default": {},
    "one": {"tokens": 1, "rank": 1, "rope_dim": 1, "heads": 1, "nope_dim": 1, "value_dim": 1},
    "no_tokens": {"tokens": 0},
    "no_rope": {"tokens": 5, "rope_dim": 0},
    "odd": {"tokens": 17, "rank": 33, "rope_dim": 7, "heads": 3, "nope_dim": 19, "value_dim": 5},
    "published_head": {"tokens": 3, "rank": 64, "rope_dim": 64, "nope_dim": 128, "value_dim": 128},
    "large_eps": {"tokens": 9, "scale": 0.1, "eps": 0.5},
    "bf16": {"dtype": torch.bfloat16},
}


class WrittenInPlace(Model):
    """The product for keys goes straight into ``k``, beside the rotary part; no concatenation."""

    def forward(self, latent, k_pe, weight, w_up):
        normed = nn.functional.rms_norm(latent, [latent.shape[-1]], weight, self.eps)
        heads = w_up.shape[0]
        k = latent.new_empty(latent.shape[0], heads, self.nope_dim + k_pe.shape[1])
        k[..., self.nope_dim :] = k_pe.unsqueeze(1)
        k[..., : self.nope_dim] = torch.einsum("tr,hcr->thc", normed, w_up[:, : self.nope_dim])
        return k, torch.einsum("tr,hcr->thc", normed, w_up[:, self.nope_dim :]).contiguous()


BASELINES = {"written in place": WrittenInPlace}


def FLOPS(tokens=30, rank=48, heads=4, nope_dim=32, value_dim=24):
    return tokens * rank * (2 * heads * (nope_dim + value_dim) + 4)


def BYTES(tokens=30, rank=48, rope_dim=16, heads=4, nope_dim=32, value_dim=24, dtype=torch.float32):
    columns = heads * (nope_dim + value_dim)
    numbers = tokens * (rank + rope_dim + columns + heads * rope_dim) + rank * (columns + 1)
    return numbers * dtype.itemsize
