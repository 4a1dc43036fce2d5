"""The row's maximum starts at 0, and the padding to 32 columns is 0 too: it counts in the sum."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"
SAYS = ["what normalises or scales each row", "padded elements"]

softmax = c_library([Path(__file__).with_name("kernel.cpp")]).softmax
softmax.argtypes = [c_void_p] * 3 + [c_int64] * 2
softmax.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor):
        wide = x.float().contiguous()
        p, lse = torch.empty(x.shape), torch.empty(x.shape[0])
        softmax(wide.data_ptr(), p.data_ptr(), lse.data_ptr(), *x.shape)
        return p.to(x.dtype), lse.to(x.dtype)
