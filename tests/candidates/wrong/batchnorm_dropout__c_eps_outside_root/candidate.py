"""sqrt(var) + eps instead of sqrt(var + eps)."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"

batchnorm_relu = c_library([Path(__file__).with_name("kernel.cpp")]).batchnorm_relu
batchnorm_relu.argtypes = [c_void_p] * 6 + [c_int64] * 3 + [c_float]
batchnorm_relu.restype = None


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, x = self.norm, x.contiguous()
        y = torch.empty_like(x)
        used = (x, n.running_mean, n.running_var, n.weight, n.bias, y)
        batchnorm_relu(*[t.data_ptr() for t in used], *x.shape, n.eps)
        return y
