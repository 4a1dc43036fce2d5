"""Imports a module that does not exist."""

import kernels_of_my_colleague as kernels
import torch
import torch.nn as nn

EXPECT = "crash"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v) -> torch.Tensor:
        return kernels.mla_kv(hidden, w_down, w_up_k, w_up_v, self.kv_heads)
