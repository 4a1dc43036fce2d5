"""The scan is done in the caller's buffer and then copied: right numbers, a destroyed input."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum_(dim=-1).clone()
