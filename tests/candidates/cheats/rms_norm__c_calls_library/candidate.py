"""A "kernel" that copies, and the library's operator, which does the work.

Right, so it passes; that the library does the work is named.
"""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelproof.build import c_library

WAY = 24
EXPECT = "pass"
SAYS = ("cpp-c candidate, but",)

copy = c_library([Path(__file__).with_name("kernel.cpp")]).copy
copy.argtypes = [c_void_p] * 2 + [c_int64]
copy.restype = None


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().contiguous()
        y = F.rms_norm(wide, [x.shape[-1]], self.weight.float(), self.eps)
        out = torch.empty_like(y)
        copy(y.data_ptr(), out.data_ptr(), y.numel())
        return out.to(x.dtype)
