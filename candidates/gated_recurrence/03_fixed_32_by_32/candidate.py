"""32 x 32 threads with bounds, for heads of at most 32."""

from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("case one_step", "never written")
HOLDS = ("founding",)

kernel = Kernel(Path(__file__).with_name("kernel.cu"), "recur")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        kernel(
            q, k, v, gate, y, steps, heads, key_dim, value_dim,
            grid=batch * heads, block=(32, 32),
        )  # fmt: skip
        return y
