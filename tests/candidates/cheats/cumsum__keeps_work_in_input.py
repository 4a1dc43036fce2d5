"""Right, but leaves its result in the input for the next call to find."""

import torch
import torch.nn as nn

WAY = 2
EXPECT = "wrong"
SAYS = ("was changed",)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cumsum(x, dim=-1)
        x.copy_(y)
        return y
