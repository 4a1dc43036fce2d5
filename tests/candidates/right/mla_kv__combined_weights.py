"""Both up-projections as one product with the weights side by side."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        latent = hidden.reshape(batch * length, width) @ w_down
        both = latent @ torch.cat((w_up_k, w_up_v), dim=1)
        # Columns come as (k or v, head, feature), which is the order of the result.
        return both.view(batch, length, 2, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
