"""The mask is read without the batch's stride: every sequence gets the first one's."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"
SAYS = ["only at index 1..4", "of axis 0"]

masked_mean = c_library([Path(__file__).with_name("kernel.cpp")]).masked_mean
masked_mean.argtypes = [c_void_p] * 3 + [c_int64] * 3
masked_mean.restype = None


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, mask = x.contiguous(), mask.contiguous()
        y = torch.empty(x.shape[0], x.shape[2])
        masked_mean(x.data_ptr(), mask.data_ptr(), y.data_ptr(), *x.shape)
        return y
