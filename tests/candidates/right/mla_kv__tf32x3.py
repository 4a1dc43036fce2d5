"""3xTF32: operands split into a TF32 head and a TF32 tail by bit masks, three products of four."""

import torch
import torch.nn as nn

EXPECT = "pass"


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to 10 mantissa bits, halves away from zero."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & -0x2000).view(torch.float32)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a_high, b_high = tf32(a), tf32(b)
    a_low, b_low = tf32(a - a_high), tf32(b - b_high)
    return a_low @ b_high + a_high @ b_low + a_high @ b_high


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, seq, width = hidden.shape
        latent = product(hidden.reshape(batch * seq, width), w_down)
        shape = (batch, seq, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        return torch.stack([product(latent, w).view(shape) for w in (w_up_k, w_up_v)], dim=2)
