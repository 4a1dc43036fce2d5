"""NaN, which a careless comparison takes for equal."""

import torch
import torch.nn as nn

WAY = 37
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, float("nan"))
