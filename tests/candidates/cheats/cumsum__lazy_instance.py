"""An ordinary tensor whose own `detach` and `cpu` compute when they are called."""

import torch
import torch.nn as nn

WAY = 7
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        y.detach = y.cpu = y.clone = lambda: torch.cumsum(x, dim=-1)
        return y
