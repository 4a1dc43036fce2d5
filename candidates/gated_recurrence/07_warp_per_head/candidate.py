"""A warp per batch and head, 18 cells of the state in each lane."""

import functools
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"


@functools.cache
def kernel(cells):
    return Kernel(Path(__file__).with_name("kernel.cu"), f"recur<{cells}>")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        width = max(1, min(value_dim, 1024 // key_dim))
        kernel(-(-key_dim * width // 32))(
            q, k, v, gate, y, steps, heads, key_dim, value_dim, width,
            grid=(batch * heads, -(-value_dim // width)), block=32,
        )  # fmt: skip
        return y
