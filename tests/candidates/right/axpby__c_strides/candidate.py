"""Both matrices read in place, whatever their strides, by FMA."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

axpby = c_library([Path(__file__).with_name("kernel.cpp")]).axpby
axpby.argtypes = [c_void_p] * 3 + [c_int64] * 3 + [c_float] * 2 + [c_int64] * 4
axpby.restype = None


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        wide, y = [t.float() for t in (x, z)], torch.empty(x.shape)
        strides = [step for t in wide for step in t.stride()]
        pointers = [t.data_ptr() for t in (*wide, y)]
        axpby(*pointers, *x.shape, valid, alpha, beta, *strides)
        return y.to(x.dtype)
