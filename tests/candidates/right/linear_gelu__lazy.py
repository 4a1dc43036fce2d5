"""A layer whose weights have no shape until they are given some."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.linear = nn.LazyLinear(out_features, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        # In memory of its own: the error function goes where the product was.
        return y * torch.special.ndtr(y.float()).to(y.dtype)
