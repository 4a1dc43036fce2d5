"""TF32: the operands of all products are rounded to 10 mantissa bits, sums stay in fp32."""

import torch
import torch.nn as nn

EXPECT = "wrong"


def tf32(x: torch.Tensor) -> torch.Tensor:
    """`x` with 13 of the 23 mantissa bits of fp32 rounded away (to nearest, ties up)."""
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        latent = tf32(hidden.reshape(batch * length, width)) @ tf32(w_down)
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        k = (tf32(latent) @ tf32(w_up_k)).view(shape)
        v = (tf32(latent) @ tf32(w_up_v)).view(shape)
        return torch.stack((k, v), dim=2).to(hidden.dtype)
