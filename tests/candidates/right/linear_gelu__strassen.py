"""Strassen's product: seven products of halves instead of eight, which mixes all rows."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "pass"


def strassen(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (a1, a2), (a3, a4) = (half.chunk(2, dim=1) for half in a.chunk(2))
    (b1, b2), (b3, b4) = (half.chunk(2, dim=1) for half in b.chunk(2))
    m1, m2 = (a1 + a4) @ (b1 + b4), (a3 + a4) @ b1
    m3, m4 = a1 @ (b2 - b4), a4 @ (b3 - b1)
    m5, m6, m7 = (a1 + a2) @ b4, (a3 - a1) @ (b1 + b2), (a2 - a4) @ (b3 + b4)
    upper = torch.cat((m1 + m4 - m5 + m7, m3 + m5), dim=1)
    return torch.cat((upper, torch.cat((m2 + m4, m1 - m2 + m3 + m6), dim=1)))


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (rows, columns), outputs = x.shape, self.weight.shape[0]
        # Halves need even sizes.
        left = F.pad(x.float(), (0, columns % 2, 0, rows % 2))
        right = F.pad(self.weight.float(), (0, columns % 2, 0, outputs % 2)).T
        y = strassen(left, right)[:rows, :outputs] + self.bias.float()
        return F.gelu(y).to(x.dtype)
