"""A fresh result; unlike the reference, this leaves ``x`` as it was."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.add(x, z))
