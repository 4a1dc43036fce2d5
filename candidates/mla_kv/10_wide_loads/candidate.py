"""Weights through the read-only cache in 16-byte loads."""

from pathlib import Path

import torch.nn as nn
import torch.nn.functional as F

from kernelproof.cuda import Kernel

EXPECT = "pass"

kernel = Kernel(Path(__file__).with_name("kernel.cu"), "mla_kv")


def in_quads(x, rows):
    """``x (..., rows, columns)`` with zeros up to multiples of four, at a multiple of 16 bytes."""
    x = F.pad(x, (0, -x.shape[-1] % 4, 0, -x.shape[-2] % 4 if rows else 0)).contiguous()
    return x if x.data_ptr() % 16 == 0 else x.clone()


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, seq, _ = hidden.shape
        columns = w_up_k.shape[1]
        shape = (batch, seq, 2, self.kv_heads, columns // self.kv_heads)
        hidden, w_down = in_quads(hidden, rows=False), in_quads(w_down, rows=True)
        w_up_k, w_up_v = in_quads(w_up_k, rows=True), in_quads(w_up_v, rows=True)
        model, (rank, wide) = w_down.shape[0], w_up_k.shape
        out = hidden.new_empty(batch, seq, 2, wide)
        if out.numel():
            splits = max(1, 128 // (rank // 4))
            kernel(
                hidden, w_down, w_up_k, w_up_v, out, model, rank, wide,
                grid=batch * seq, block=128, shared=4 * (model + splits * rank + rank),
            )  # fmt: skip
        return out[..., :columns].reshape(shape)
