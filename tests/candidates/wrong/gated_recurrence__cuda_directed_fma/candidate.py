"""A right CUDA kernel with an operation that is not emulated, a double fma rounded towards zero:
without a GPU it is unsupported, neither wrong nor a crash."""

from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "unsupported"

kernel = Kernel(Path(__file__).with_name("kernel.cu"), "gated_recurrence")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        batch, length, heads, rows = q.shape
        columns = v.shape[3]
        plain = [t.float().contiguous() for t in (q, k, v, gate)]
        y = torch.empty(batch, length, heads, columns, dtype=torch.float32, device=q.device)
        if y.numel() == 0:
            return y.to(q.dtype)  # a grid of no blocks cannot be launched
        state = torch.zeros(batch, heads, rows, columns, dtype=torch.float32, device=q.device)
        # A block per (batch, head), a thread per column.
        kernel(*plain, state, y, length, heads, rows, columns, grid=batch * heads, block=columns)
        return y.to(q.dtype)
