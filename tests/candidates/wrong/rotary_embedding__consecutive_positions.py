"""Reads the first position only, and counts on from there."""

import torch
import torch.nn as nn

EXPECT = "wrong"
SAYS = ("case packed",)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


class ModelNew(nn.Module):
    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dim = q.shape[-1]
        counted = positions[0] + torch.arange(positions.shape[0], device=q.device)
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=q.device) / dim
        angle = counted.float().unsqueeze(-1) * (1.0 / self.base**exponent)
        cos, sin = angle.cos().unsqueeze(1), angle.sin().unsqueeze(1)
        return rotate(q, cos, sin), rotate(k, cos, sin)
