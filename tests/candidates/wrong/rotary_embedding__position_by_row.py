"""Counts positions from zero instead of reading them."""

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
        row = torch.arange(q.shape[1], dtype=torch.float32, device=q.device)
        angle = row.unsqueeze(-1) * (1.0 / self.base**exponent)
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
