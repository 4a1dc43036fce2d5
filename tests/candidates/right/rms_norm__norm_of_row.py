"""By the length of each row, in fp64, rounded once."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.double()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        root = torch.sqrt(length * length / x.shape[-1] + self.eps)
        return (wide / root * self.weight.double()).to(x.dtype)
