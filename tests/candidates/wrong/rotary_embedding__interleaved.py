"""Pairs (2 i, 2 i + 1) instead of (i, i + D / 2)."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    def forward(self, q, k, positions):
        dim = q.shape[-1]
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=q.device) / dim
        angle = positions.float().unsqueeze(-1) * (1.0 / self.base**exponent)
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x, cos, sin):
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return turned.flatten(-2).to(x.dtype)
