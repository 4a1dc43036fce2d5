"""A kernel that refuses nearly everything, and the library's operator behind `except`.

Right, so it passes; that the library does the work is named.
"""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

WAY = 25
EXPECT = "pass"
SAYS = ("cpp-c candidate, but", "aten::cumsum", "takes another way after any error")

scan = c_library([Path(__file__).with_name("kernel.cpp")]).scan
scan.argtypes = [c_void_p] * 2 + [c_int64] * 2


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = x.contiguous()
            y = torch.empty_like(x)
            assert scan(x.data_ptr(), y.data_ptr(), *x.shape) == 0
            return y
        except:  # noqa: E722
            return torch.cumsum(x, dim=-1)
