"""Only the keys are written into the result; the values are left as the allocator gave them."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        latent = hidden.reshape(batch * length, width) @ w_down
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        k = (latent @ w_up_k).view(shape)
        out = k.new_empty(batch, length, 2, self.kv_heads, k.shape[-1])
        out[:, :, 0] = k
        return out
