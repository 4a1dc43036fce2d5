"""A "kernel" that adds zero to one element, and the library's operator, which does the work.

Right, so it passes; that the library does the work is named.
"""

from ctypes import c_void_p
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

from kernelproof.build import c_library

WAY = 24
EXPECT = "pass"
SAYS = ("cpp-c candidate, but",)

touch = c_library([Path(__file__).with_name("kernel.cpp")]).touch
touch.argtypes = [c_void_p]
touch.restype = None


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(columns, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().contiguous()
        y = F.rms_norm(wide, [x.shape[-1]], self.weight.float(), self.eps)
        if y.numel():
            touch(y.data_ptr())
        return y.to(x.dtype)
