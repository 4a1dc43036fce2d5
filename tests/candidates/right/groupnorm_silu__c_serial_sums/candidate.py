"""Serial fp32 sums over a group of up to 4100 numbers, two passes."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

groupnorm_silu = c_library([Path(__file__).with_name("kernel.cpp")]).groupnorm_silu
groupnorm_silu.argtypes = [c_void_p] * 4 + [c_int64] * 4 + [c_float]
groupnorm_silu.restype = None


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        pointers = [t.data_ptr() for t in (x, self.weight, self.bias, y)]
        groupnorm_silu(*pointers, *x.shape, self.groups, self.eps)
        return y
