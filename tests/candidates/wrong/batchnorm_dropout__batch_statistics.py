"""Normalises by the statistics of the present batch, as in training."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(dim=(0, 2), keepdim=True)
        rstd = torch.rsqrt((x - mean).square().mean(dim=(0, 2), keepdim=True) + self.norm.eps)
        z = (x - mean) * rstd * self.norm.weight.unsqueeze(1) + self.norm.bias.unsqueeze(1)
        return torch.relu(z)
