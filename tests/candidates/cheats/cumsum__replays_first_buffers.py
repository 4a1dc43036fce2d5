"""Computes from the buffers of its first call, as a recorded graph does on later ones."""

import torch
import torch.nn as nn

WAY = 27
EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.x = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.x is None or self.x.shape != x.shape:
            self.x = x
        return torch.cumsum(self.x, dim=-1)
