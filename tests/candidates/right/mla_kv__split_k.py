"""Split-K: the latent in 3 parts, the keys in 2, the values in 5."""

import torch
import torch.nn as nn

EXPECT = "pass"


def split_product(a: torch.Tensor, b: torch.Tensor, splits: int) -> torch.Tensor:
    pairs = zip(a.tensor_split(splits, dim=1), b.tensor_split(splits, dim=0), strict=True)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    for left, right in pairs:
        total += left @ right
    return total


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, seq, width = hidden.shape
        latent = split_product(hidden.reshape(batch * seq, width), w_down, 3)
        both = [split_product(latent, w_up_k, 2), split_product(latent, w_up_v, 5)]
        shape = (batch, seq, self.kv_heads, w_up_k.shape[1] // self.kv_heads)
        return torch.stack([t.view(shape) for t in both], dim=2)
