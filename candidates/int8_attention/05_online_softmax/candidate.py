"""Tiles of 32 keys in shared memory, an online softmax, a thread per query."""

import functools
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"


@functools.cache
def kernel(dim):
    return Kernel(Path(__file__).with_name("kernel.cu"), f"attend<{dim}>")


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        q, k, v = q_q.contiguous(), k_q.contiguous(), v_q.contiguous()
        batch, queries, heads, dim = q.shape
        keys, kv_heads = k.shape[1:3]
        out = torch.empty(q.shape, dtype=q_scale.dtype, device=q.device)
        if out.numel() == 0:
            return out
        kernel(dim)(
            q, k, v, q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous(), out,
            queries, keys, heads, kv_heads, int(self.causal),
            grid=(batch * heads, -(-queries // 32)), block=32,
        )  # fmt: skip
        return out
