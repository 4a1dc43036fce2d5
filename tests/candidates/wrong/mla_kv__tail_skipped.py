"""The last three terms of the sum over the model width are left out (a loop bound by fours)."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        width = max(width - 3, 0)
        latent = hidden[..., :width].reshape(batch * length, width) @ w_down[:width]
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        k, v = (latent @ w_up_k).view(shape), (latent @ w_up_v).view(shape)
        return torch.stack((k, v), dim=2)
