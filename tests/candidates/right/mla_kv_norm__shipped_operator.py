"""The shipped operator with its norm, rotary part, packed weight and gradients."""

import torch.nn as nn

from kernelproof.ops.mla_kv import mla_kv

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4, k_dim: int = 32, eps: float = 1e-6):
        super().__init__()
        self.kv_heads, self.k_dim, self.eps = kv_heads, k_dim, eps

    def forward(self, hidden, w_down, norm_weight, w_up, k_pe):
        return mla_kv(
            hidden,
            w_down,
            w_up,
            kv_heads=self.kv_heads,
            k_dim=self.k_dim,
            weights="out_in",
            norm_weight=norm_weight,
            norm_eps=self.eps,
            k_pe=k_pe,
            layout="split",
        )
