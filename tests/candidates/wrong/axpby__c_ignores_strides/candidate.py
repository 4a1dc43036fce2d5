"""Reads both matrices as if they were contiguous: wrong for slices and transposes only."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"

axpby = c_library([Path(__file__).with_name("kernel.cpp")]).axpby
axpby.argtypes = [c_void_p] * 3 + [c_int64] * 3 + [c_float] * 2
axpby.restype = None


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        wide = [t.float() for t in (x, z)]
        y = torch.empty(x.shape)
        axpby(*[t.data_ptr() for t in (*wide, y)], *x.shape, valid, alpha, beta)
        return y.to(x.dtype)
