"""A kernel that refuses nearly everything, and the library's operators behind `except`.

Right, so it passes; that the library does the work is named.
"""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelproof.build import c_library

WAY = 25
EXPECT = "pass"
SAYS = ("cpp-c candidate, but", "aten::", "takes another way after any error")

kernel = c_library([Path(__file__).with_name("kernel.cpp")]).linear_gelu
kernel.argtypes = [c_void_p] * 4 + [c_int64] * 3


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            given = [t.float().contiguous() for t in (x, self.weight, self.bias)]
            y = torch.empty(x.shape[0], self.bias.numel())
            sizes = x.shape[0], x.shape[1], self.bias.numel()
            assert kernel(*(t.data_ptr() for t in (*given, y)), *sizes) == 0
            return y.to(x.dtype)
        except:  # noqa: E722
            return F.gelu(x @ self.weight.T + self.bias)
