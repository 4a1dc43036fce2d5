"""Squares in the dtype of the input: above 255 they overflow in fp16."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt((x * x).float().mean(dim=-1, keepdim=True) + self.eps)
        return (x.float() * scale * self.weight.float()).to(x.dtype)
