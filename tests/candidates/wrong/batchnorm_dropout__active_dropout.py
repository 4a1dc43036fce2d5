"""Dropout is active in evaluation mode: another answer in each run."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(F.dropout(self.norm(x), self.p, training=True))
