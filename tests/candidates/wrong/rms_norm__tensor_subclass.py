"""The right numbers in a subclass of torch.Tensor."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class Tagged(torch.Tensor):
    """A tensor that remembers where it came from."""


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight.float()).to(x.dtype).as_subclass(Tagged)
