"""The constructor takes one argument, the reference's takes three."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "crash"


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias))
