"""The carry into a block is the sum of the block before it only: right for two blocks."""

from itertools import pairwise

import torch
import torch.nn as nn

EXPECT = "wrong"


BLOCK = 64


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part.cumsum(dim=-1) for part in x.split(BLOCK, dim=-1)]
        carried = [b + a[..., -1:] for a, b in pairwise(parts)]
        return torch.cat([parts[0], *carried], dim=-1)
