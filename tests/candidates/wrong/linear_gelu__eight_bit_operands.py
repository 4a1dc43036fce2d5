"""The product of the 16-bit case in operands of eight bits (float8_e5m2)."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"
SAYS = ("case bf16",)


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float8_e5m2).float() if x.dtype == torch.bfloat16 else x


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.bias.to(rounded(x).dtype)
        return F.gelu(F.linear(rounded(x), rounded(self.weight), bias)).to(x.dtype)
