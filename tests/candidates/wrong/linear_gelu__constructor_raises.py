"""The constructor raises: it accepts multiples of 64 only, and says so."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "crash"


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        if in_features % 64 or out_features % 64:
            raise ValueError(f"sizes must be multiples of 64, not {in_features} and {out_features}")
        self.weight = nn.Parameter(torch.zeros(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias))
