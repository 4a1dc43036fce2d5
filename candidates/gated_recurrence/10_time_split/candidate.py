"""The steps are split over the warps of a block."""

import functools
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"


@functools.cache
def kernel(key_dim):
    return Kernel(Path(__file__).with_name("kernel.cu"), f"recur<{key_dim}>")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        warps = max(1, min(8, 96 * 1024 // (128 * (key_dim + 1))))
        kernel(key_dim)(
            q, k, v, gate, y, steps, heads, value_dim,
            grid=(batch * heads, -(-value_dim // 32)), block=(32, warps),
            shared=128 * warps * (key_dim + 1),
        )  # fmt: skip
        return y
