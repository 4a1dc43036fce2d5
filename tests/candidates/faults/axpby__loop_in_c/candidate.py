"""Waits in C++ for a value that never comes."""

import ctypes
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "timeout"
SAYS = ("no answer to 'call' within",)

_library = c_library([Path(__file__).with_name("kernel.cpp")])
_library.scale.argtypes = [ctypes.c_void_p, ctypes.c_int64]


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = x.clone()
        _library.scale(y.data_ptr(), y.numel())
        return y
