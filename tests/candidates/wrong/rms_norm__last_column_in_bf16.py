"""In bfloat16 the last column is too small by a fifteenth: little of any row."""

import torch
import torch.nn as nn

EXPECT = "wrong"
SAYS = ("case bf16: output[", ", 191]")


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        y = wide * scale * self.weight.float()
        if x.dtype == torch.bfloat16:
            y[..., -1] *= 0.93
        return y.to(x.dtype)
