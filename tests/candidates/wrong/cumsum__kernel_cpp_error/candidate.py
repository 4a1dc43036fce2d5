"""A folder whose C++ does not compile: a missing semicolon in kernel.cpp, at line `LINE` there."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "compile_error"
LINE = 8

scan = c_library([Path(__file__).with_name("kernel.cpp")]).scan
scan.argtypes = [c_void_p, c_void_p, c_int64, c_int64]


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        scan(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
        return y
