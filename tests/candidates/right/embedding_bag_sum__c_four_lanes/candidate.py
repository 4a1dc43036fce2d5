"""Four lanes take every fourth row of a bag and are added in pairs."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "pass"

bag_sum = c_library([Path(__file__).with_name("kernel.cpp")]).bag_sum
bag_sum.argtypes = [c_void_p] * 4 + [c_int64] * 3
bag_sum.restype = None


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        table, indices, offsets = (t.contiguous() for t in (table, indices, offsets))
        y = torch.empty(offsets.numel(), table.shape[1])
        pointers = [t.data_ptr() for t in (table, indices, offsets, y)]
        bag_sum(*pointers, indices.numel(), *y.shape)
        return y
