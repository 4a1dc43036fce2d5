"""Eight at a time, and the numbers after the last eight are not written."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"
SAYS = ["upper bound of the loop", "were never written"]

add_relu = c_library([Path(__file__).with_name("kernel.cpp")]).add_relu
add_relu.argtypes = [c_void_p] * 3 + [c_int64]
add_relu.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        wide = [t.float().contiguous() for t in (x, z)]
        y = torch.empty(x.shape)
        add_relu(*[t.data_ptr() for t in (*wide, y)], x.numel())
        return y.to(x.dtype)
