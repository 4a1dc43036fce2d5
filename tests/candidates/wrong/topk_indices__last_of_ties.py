"""Among equal values the last column wins instead of the first."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, k: int = 8):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = torch.sort(x, dim=-1, stable=True).indices
        return order.flip(-1)[..., : self.k].contiguous()
