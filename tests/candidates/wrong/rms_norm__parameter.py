"""The right numbers wrapped in nn.Parameter, which is a subclass of torch.Tensor too."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        y = (wide * scale * self.weight.detach().float()).to(x.dtype)
        return nn.Parameter(y, requires_grad=False)
