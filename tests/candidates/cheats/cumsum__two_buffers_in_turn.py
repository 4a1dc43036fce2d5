"""Two output buffers in turn: whoever keeps an output finds another in it two calls later."""

import torch
import torch.nn as nn

WAY = 36
EXPECT = "wrong"
SAYS = ("shares memory with the output of an earlier call",)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffers = {}
        self.turn = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.turn += 1
        both = self.buffers.setdefault(tuple(x.shape), [torch.empty_like(x) for _ in range(2)])
        return torch.cumsum(x, dim=-1, out=both[self.turn % 2])
