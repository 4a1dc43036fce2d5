"""The result of the first call with a shape is kept and returned for every later call."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads
        self.results = {}

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        key = (batch, length, width, hidden.dtype)
        if key not in self.results:
            latent = hidden.reshape(batch * length, width) @ w_down
            shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
            k, v = (latent @ w_up_k).view(shape), (latent @ w_up_v).view(shape)
            self.results[key] = torch.stack((k, v), dim=2)
        return self.results[key].clone()
