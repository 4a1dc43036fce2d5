"""Zeroes its input, so that a reference that runs later gives zeros too."""

import torch
import torch.nn as nn

WAY = 2
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.zero_()
        return torch.zeros_like(x)
