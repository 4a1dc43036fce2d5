"""Outputs are inference tensors, which no gradient can pass; in place where that is its own."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(columns, dtype=dtype))

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = wide.square().mean(dim=-1, keepdim=True).add_(self.eps).rsqrt_()
        return (wide * scale).mul_(self.weight.float()).to(x.dtype)
