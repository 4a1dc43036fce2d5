"""Exclusive instead of inclusive: shifted by one, zero first."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1) - x
