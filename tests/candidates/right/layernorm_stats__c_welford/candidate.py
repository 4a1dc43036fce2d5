"""Welford's update, one element at a time, with a multiplication by 1 / n."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

layernorm = c_library([Path(__file__).with_name("kernel.cpp")]).layernorm
layernorm.argtypes = [c_void_p] * 6 + [c_int64] * 2 + [c_float]
layernorm.restype = None


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = [t.float().contiguous() for t in (x, weight, bias)]
        out = [torch.empty(x.shape), torch.empty(x.shape[0]), torch.empty(x.shape[0])]
        layernorm(*[t.data_ptr() for t in (*wide, *out)], *x.shape, self.eps)
        y, mean, rstd = (t.to(x.dtype) for t in out)
        return {"y": y, "mean": mean, "rstd": rstd}
