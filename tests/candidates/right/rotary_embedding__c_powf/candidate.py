"""Frequencies by powf and angles in fp32, per element, as a kernel without tables does."""

from ctypes import c_float, c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

rotate = c_library([Path(__file__).with_name("kernel.cpp")]).rotate
rotate.argtypes = [c_void_p] * 3 + [c_int64] * 4 + [c_float]
rotate.restype = None


class ModelNew(nn.Module):
    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    def forward(self, q, k, positions):
        positions, turned = positions.contiguous(), []
        for x in (q, k):
            wide, y = x.float().contiguous(), torch.empty(x.shape)
            pointers = [t.data_ptr() for t in (wide, positions, y)]
            rotate(*pointers, *x.shape, self.base)
            turned.append(y.to(x.dtype))
        return tuple(turned)
