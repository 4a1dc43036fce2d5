"""Serial fp32 dot products without fused multiply-adds; GELU by erfc."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

linear_gelu = c_library(
    [Path(__file__).with_name("kernel.cpp")], cflags=["-ffp-contract=off"]
).linear_gelu
linear_gelu.argtypes = [c_void_p] * 4 + [c_int64] * 3
linear_gelu.restype = None


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = [t.float().contiguous() for t in (x, self.weight, self.bias)]
        y = torch.empty(x.shape[0], self.weight.shape[0])
        pointers = [t.data_ptr() for t in (*wide, y)]
        linear_gelu(*pointers, *x.shape, self.weight.shape[0])
        return y.to(x.dtype)
