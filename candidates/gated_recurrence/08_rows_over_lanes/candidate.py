"""Columns over blocks, rows over lanes, a shuffle sum."""

import functools
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"


@functools.cache
def kernel(rows):
    return Kernel(Path(__file__).with_name("kernel.cu"), f"recur<{rows}>")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        kernel(-(-key_dim // 32))(
            q, k, v, gate, y, steps, heads, key_dim, value_dim,
            grid=(batch * heads, -(-value_dim // 4)), block=(32, 4),
        )  # fmt: skip
        return y
