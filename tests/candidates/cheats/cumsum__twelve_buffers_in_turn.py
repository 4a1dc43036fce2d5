"""Returns twelve buffers in turn, more than there are calls whose outputs are held."""

import torch
import torch.nn as nn

WAY = 36
EXPECT = "wrong"
SAYS = ("shares memory with the output of an earlier call",)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept, self.calls = {}, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        key = x.shape, self.calls % 12
        if key not in self.kept:
            self.kept[key] = torch.empty(x.shape)
        return torch.cumsum(x, dim=-1, out=self.kept[key])
