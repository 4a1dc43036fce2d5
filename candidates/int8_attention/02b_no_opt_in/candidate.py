"""As 02a, without opting in to more than 48 KiB of shared memory, errors ignored."""

import contextlib
from pathlib import Path

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("49,152", "cudaFuncSetAttribute")

kernel = Kernel(Path(__file__).with_name("kernel.cu"), "attend")


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
        with contextlib.suppress(Exception):  # nobody looks
            kernel(
                q, k, v, q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous(), out,
                batch, queries, keys, heads, kv_heads, dim, int(self.causal),
                grid=-(-batch * queries * heads // 256), block=256, shared=4 * 256 * keys,
                opt_in=False,
            )  # fmt: skip
        return out
