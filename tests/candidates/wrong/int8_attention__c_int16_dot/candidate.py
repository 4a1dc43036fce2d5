"""Integer scores in 16 bits: three products of 127 by 127 already overflow."""

from ctypes import c_int64, c_void_p
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.build import c_library

EXPECT = "wrong"

attention = c_library([Path(__file__).with_name("kernel.cpp")]).attention
attention.argtypes = [c_void_p] * 7 + [c_int64] * 7
attention.restype = None


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        (batch, length, heads, dim), (keys, kv_heads) = q_q.shape, k_q.shape[1:3]
        out = torch.empty(q_q.shape, dtype=torch.float32)
        used = [t.contiguous() for t in (q_q, k_q, v_q, q_scale, k_scale, v_scale)]
        pointers = [t.data_ptr() for t in (*used, out)]
        attention(*pointers, batch, length, keys, heads, kv_heads, dim, self.causal)
        return out
