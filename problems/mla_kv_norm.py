"""Keys and values of multi-head latent attention, in DeepSeek's form: down, norm, up, concat.

    l[t] = w_down @ hidden[t]                               (R,)
    n[t] = l[t] / sqrt(mean(l[t]^2) + eps) * norm_weight    (R,)
    u[t] = w_up @ n[t]                                      (H, Dk + Dv)
    k[t, h] = concat(u[t, h, :Dk], k_pe[t])                 (Dk + P,)
    v[t, h] = u[t, h, Dk:]                                  (Dv,)

``hidden`` is (B, S, M) and ``k_pe``, the rotary part that all heads share, (B, S, 1, P). Weights
have nn.Linear's form: ``w_down`` is (R, M) and ``w_up``, called kv_b_proj in published models, is
(H * (Dk + Dv), R) with the rows of a head together, its keys before its values. The result is
``(k, v)``, (B, S, H, Dk + P) and (B, S, H, Dv). The norm is taken in fp32 and rounded once to the
inputs' dtype. Gradients by all five inputs are part of the proof.

Traps for kernel writers:

- ``w_up`` interleaves keys and values by head; "first all keys" has the same shape.
- The norm comes after the down-projection and covers the latent only, not ``k_pe``.
- A fused kernel that splits the columns over blocks needs each token's whole latent for the norm.
- The gradient by the latent has a second term, through the mean; that by ``k_pe`` sums over heads.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, kv_heads: int = 4, k_dim: int = 32, eps: float = 1e-6):
        super().__init__()
        self.kv_heads, self.k_dim, self.eps = kv_heads, k_dim, eps

    def forward(self, hidden, w_down, norm_weight, w_up, k_pe):
        latent = hidden @ w_down.T
        wide = latent.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        normed = (wide * scale * norm_weight.float()).to(latent.dtype)
        up = (normed @ w_up.T).unflatten(-1, (self.kv_heads, w_up.shape[0] // self.kv_heads))
        shared = k_pe.expand(*k_pe.shape[:-2], self.kv_heads, k_pe.shape[-1])
        k = torch.cat((up[..., : self.k_dim], shared), dim=-1)
        return k, up[..., self.k_dim :].contiguous()


def get_inputs(
    batch=2,
    seq=30,
    model=128,
    rank=48,
    kv_heads=4,
    k_dim=32,
    v_dim=24,
    rope_dim=16,
    scale=1.0,
    eps=1e-6,
    joined=False,
    dtype=torch.float32,
):
    # `eps` is the constructor's; it is named here because one case sets it. `joined`: hidden and
    # k_pe are columns of one tensor.
    hidden = scale * torch.randn(batch, seq, model)
    k_pe = torch.randn(batch, seq, rope_dim)
    if joined:
        both = torch.cat((hidden, k_pe), dim=-1).to(dtype)
        hidden, k_pe = both[..., :model], both[..., model:]
    w_down = torch.randn(rank, model) / max(model, 1) ** 0.5
    norm_weight = 1 + 0.3 * torch.randn(rank)
    w_up = torch.randn(kv_heads * (k_dim + v_dim), rank) / max(rank, 1) ** 0.5
    weights = [w.to(dtype) for w in (w_down, norm_weight, w_up)]
    return [hidden.to(dtype), *weights, k_pe.to(dtype).unsqueeze(-2)]


def get_init_inputs(kv_heads=4, k_dim=32, eps=1e-6):
    return [kv_heads, k_dim, eps]


CASES = {
    "default": {},
    "one": dict(batch=1, seq=1, model=1, rank=1, kv_heads=1, k_dim=1, v_dim=1, rope_dim=1),
    "no_tokens": dict(seq=0),
    "no_rope": dict(seq=5, rope_dim=0),
    "odd": dict(batch=3, seq=7, model=61, rank=19, kv_heads=3, k_dim=11, v_dim=5, rope_dim=7),
    "one_over": dict(batch=1, seq=33, model=257, rank=129, kv_heads=1, k_dim=65, v_dim=129),
    "published_head": dict(
        batch=1, seq=3, model=256, rank=64, kv_heads=2, k_dim=128, v_dim=128, rope_dim=64
    ),
    "large_eps": dict(seq=9, scale=0.1, eps=0.5),
    "joined_columns": dict(seq=11, joined=True),
    "decode_bf16": dict(batch=5, seq=1, model=512, rank=128, dtype=torch.bfloat16),
    "fp16": dict(dtype=torch.float16),
}
BACKWARD = True


class WrittenInPlace(Model):
    """One product for keys and values; the keys are copied beside the rotary part."""

    def forward(self, hidden, w_down, norm_weight, w_up, k_pe):
        latent = hidden @ w_down.T
        normed = nn.functional.rms_norm(latent, [latent.shape[-1]], norm_weight, self.eps)
        up = (normed @ w_up.T).unflatten(-1, (self.kv_heads, w_up.shape[0] // self.kv_heads))
        k = up.new_empty(*up.shape[:-1], self.k_dim + k_pe.shape[-1])
        k[..., : self.k_dim] = up[..., : self.k_dim]
        k[..., self.k_dim :] = k_pe
        return k, up[..., self.k_dim :].contiguous()


BASELINES = {"written in place": WrittenInPlace}


def FLOPS(batch=2, seq=30, model=128, rank=48, kv_heads=4, k_dim=32, v_dim=24):
    return 2 * batch * seq * rank * (model + kv_heads * (k_dim + v_dim) + 2)


def BYTES(
    batch=2,
    seq=30,
    model=128,
    rank=48,
    kv_heads=4,
    k_dim=32,
    v_dim=24,
    rope_dim=16,
    dtype=torch.float32,
):
    columns = kv_heads * (k_dim + v_dim)
    tokens = batch * seq * (model + rope_dim + columns + kv_heads * rope_dim)
    return (tokens + rank * (model + columns + 1)) * dtype.itemsize
