"""The class has another name, so there is no ModelNew."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class LatentProjection(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, _ = hidden.shape
        latent = hidden @ w_down
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        k, v = (latent @ w_up_k).view(shape), (latent @ w_up_v).view(shape)
        return torch.stack((k, v), dim=2)
