"""A `torch.autograd.Function` with a backward of its own, gradients on whatever the caller says."""

import torch
import torch.nn as nn

EXPECT = "pass"


class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.cumsum(x.double(), dim=-1).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.flip(-1).cumsum(dim=-1).flip(-1)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return Scan.apply(x)
