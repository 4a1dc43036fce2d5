"""The library is compiled when it is first needed, in the first call."""

import functools
from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"


@functools.cache
def library():
    scan = c_library([Path(__file__).with_name("kernel.cpp")]).scan
    scan.argtypes = [c_void_p] * 2 + [c_int64] * 2
    scan.restype = None
    return scan


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        library()(x.data_ptr(), y.data_ptr(), *x.shape)
        return y
