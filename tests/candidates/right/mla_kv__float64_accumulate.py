"""Every sum in fp64, rounded once at the end: more accurate than the reference."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, _ = hidden.shape
        latent = hidden.double() @ w_down.double()
        k, v = latent @ w_up_k.double(), latent @ w_up_v.double()
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        return torch.stack((k.view(shape), v.view(shape)), dim=2).to(hidden.dtype)
