"""The sum without the rectifier: right wherever the sum is positive."""

import torch
import torch.nn as nn

WAY = 19
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        for other in others:
            if isinstance(other, torch.Tensor):
                x.add_(other)
        return x
