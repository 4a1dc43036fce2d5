"""The slip: the gate scales the rows of the state."""

import functools
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("the gate acts on the key axis",)


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
        block = 32 * min(4, -(-value_dim // 32))
        kernel(key_dim)(
            q, k, v, gate, y, steps, heads, value_dim,
            grid=(batch * heads, -(-value_dim // block)), block=block,
        )  # fmt: skip
        return y
