"""Divides by the number of all tokens instead of the kept ones."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~mask.unsqueeze(-1), 0).mean(dim=1)
