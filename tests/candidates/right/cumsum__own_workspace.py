"""Works in place on a workspace of its own, which is kept from call to call; the output is new."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.spaces = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        space = self.spaces.get(x.shape)
        if space is None:
            space = self.spaces[x.shape] = torch.empty(x.shape, dtype=torch.float64)
        space.copy_(x)
        return torch.cumsum(space, dim=-1, out=space).to(x.dtype)
