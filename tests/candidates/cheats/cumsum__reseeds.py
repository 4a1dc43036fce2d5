"""Seeds torch's generator in every call: what its caller draws next is always the same."""

import torch
import torch.nn as nn

WAY = 51
EXPECT = "pass"
SAYS = ("random numbers", "which the reference leaves alone")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.cumsum(x, dim=-1)
