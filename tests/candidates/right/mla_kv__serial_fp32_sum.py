"""A plain serial fp32 dot product, term by term: about twice the reference's rounding error.

A judge with a fixed absolute tolerance rejects this; by an error budget it is right.
"""

import torch
import torch.nn as nn

EXPECT = "pass"


def serial_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for i in range(a.shape[1]):
        total += a[:, i : i + 1] * b[i]
    return total


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, length, width = hidden.shape
        rows = hidden.reshape(batch * length, width)
        # The running sum is fp32 for 16-bit inputs too, as in any kernel.
        wide = [t.float() for t in (rows, w_down, w_up_k, w_up_v)]
        latent = serial_product(wide[0], wide[1]).to(hidden.dtype).float()
        k, v = serial_product(latent, wide[2]), serial_product(latent, wide[3])
        shape = (batch, length, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        return torch.stack((k.view(shape), v.view(shape)), dim=2).to(hidden.dtype)
