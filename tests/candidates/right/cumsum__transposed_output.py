"""The output has other strides than the reference's: columns lie together."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty(x.shape[::-1], dtype=x.dtype).t()
        return y.copy_(torch.cumsum(x.double(), dim=-1))
