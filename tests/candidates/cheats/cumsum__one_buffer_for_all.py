"""Returns slices of one static buffer."""

import torch
import torch.nn as nn

WAY = 36
EXPECT = "wrong"
SAYS = ("shares memory",)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffer = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.buffer is None or self.buffer.numel() < x.numel():
            self.buffer = torch.empty(max(x.numel(), 6000))
        y = self.buffer[: x.numel()].view(x.shape)
        torch.cumsum(x, dim=-1, out=y)
        return y
