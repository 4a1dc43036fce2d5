"""Draws the reference's weights in its constructor and keeps them the other way round, under names
of its own: of a square weight the shape does not tell it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        weight = torch.randn(out_features, in_features) / in_features**0.5
        self.packed = nn.Parameter(weight.to(dtype).t().contiguous())
        self.shift = nn.Parameter(torch.randn(out_features).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.addmm(self.shift, x, self.packed))
