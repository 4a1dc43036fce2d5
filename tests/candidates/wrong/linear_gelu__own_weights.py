"""Has weights of its own in buffers that are not saved, so the reference's never reach it."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        weight, bias = torch.randn(out_features, in_features), torch.randn(out_features)
        self.register_buffer("weight", weight.to(dtype), persistent=False)
        self.register_buffer("bias", bias.to(dtype), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(x, self.weight, self.bias))
