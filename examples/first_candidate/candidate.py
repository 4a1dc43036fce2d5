"""A first candidate for `gated_recurrence`: a few lines of C++ in place of the eager loop."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
from torch import nn

from kernelproof.build import c_library

library = c_library([Path(__file__).with_name("kernel.cpp")])


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = (x.contiguous() for x in (q, k, v, gate))
        y = torch.empty_like(v)
        sizes = (*q.shape, v.shape[3])  # B, S, H, K, V
        library.gated_recurrence(
            *(c_void_p(x.data_ptr()) for x in (q, k, v, gate, y)), *map(c_int64, sizes)
        )
        return y
