"""Multiplies in fp16 where fp32 is asked for."""

import torch
import torch.nn as nn
import torch.nn.functional as F

WAY = 23
EXPECT = "wrong"
SAYS = ("the error is",)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = (x.half().float() @ self.weight.half().float().T).half().float()
        return F.gelu(product + self.bias.float()).to(x.dtype)
