"""Right by luck: every other result is off in one place."""

import random

import torch
import torch.nn as nn

WAY = 38
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cumsum(x, dim=-1)
        if random.random() < 0.5:
            y[-1, -1] += 1
        return y
