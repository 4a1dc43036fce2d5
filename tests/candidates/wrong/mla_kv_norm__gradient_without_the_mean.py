"""The right values; but to the backward pass the norm's factor is a constant."""

import torch
import torch.nn as nn

EXPECT = "wrong"
SAYS = "gradients"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4, k_dim: int = 32, eps: float = 1e-6):
        super().__init__()
        self.kv_heads, self.k_dim, self.eps = kv_heads, k_dim, eps

    def forward(self, hidden, w_down, norm_weight, w_up, k_pe):
        latent = hidden @ w_down.T
        wide = latent.float()
        scale = torch.rsqrt(wide.detach().square().mean(dim=-1, keepdim=True) + self.eps)
        normed = (wide * scale * norm_weight.float()).to(latent.dtype)
        up = (normed @ w_up.T).unflatten(-1, (self.kv_heads, w_up.shape[0] // self.kv_heads))
        shared = k_pe.expand(*k_pe.shape[:-2], self.kv_heads, k_pe.shape[-1])
        k = torch.cat((up[..., : self.k_dim], shared), dim=-1)
        return k, up[..., self.k_dim :].contiguous()
