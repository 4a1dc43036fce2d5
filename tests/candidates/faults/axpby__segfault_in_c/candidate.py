"""Writes far outside of its output in C++."""

import ctypes
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "crash"
SAYS = ("SIGSEGV", "in forward")

_library = c_library([Path(__file__).with_name("kernel.cpp")])
_library.scale.argtypes = [ctypes.c_void_p, ctypes.c_int64]


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = x.clone()
        _library.scale(y.data_ptr(), y.numel())
        return y
