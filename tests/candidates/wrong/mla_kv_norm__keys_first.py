"""Takes the packed weight for all heads' keys followed by all heads' values."""

import torch.nn as nn

from kernelproof.ops.mla_kv import mla_kv

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4, k_dim: int = 32, eps: float = 1e-6):
        super().__init__()
        self.kv_heads, self.k_dim, self.eps = kv_heads, k_dim, eps

    def forward(self, hidden, w_down, norm_weight, w_up, k_pe):
        keys = self.kv_heads * self.k_dim
        return mla_kv(
            hidden,
            w_down,
            w_up[:keys],
            w_up[keys:],
            kv_heads=self.kv_heads,
            weights="out_in",
            norm_weight=norm_weight,
            norm_eps=self.eps,
            k_pe=k_pe,
            layout="split",
        )
