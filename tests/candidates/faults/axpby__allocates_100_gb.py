"""Asks for 100 GB at once."""

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("allocate memory",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        torch.empty(100_000_000_000, dtype=torch.uint8).fill_(1)
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
