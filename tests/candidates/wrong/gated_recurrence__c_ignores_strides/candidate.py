"""Reads its inputs as if they were contiguous: wrong for slices and transposes only."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"

recurrence = c_library([Path(__file__).with_name("kernel.cpp")]).recurrence
recurrence.argtypes = [c_void_p] * 5 + [c_int64] * 5
recurrence.restype = None


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        plain = [t.float() for t in (q, k, v, gate)]
        out = torch.empty(v.shape, dtype=torch.float32)
        recurrence(*[t.data_ptr() for t in (*plain, out)], *q.shape, v.shape[3])
        return out.to(q.dtype)
