"""A line with the wrong indentation: Python refuses the file ('return' outside function)."""

import torch
import torch.nn as nn

EXPECT = "compile_error"
LINE = 21


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, _ = hidden.shape
        latent = hidden @ w_down
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        pair = [(latent @ w).view(shape) for w in (w_up_k, w_up_v)]  # noqa: F841

    return torch.stack(pair, dim=2)  # noqa: F706, F821
