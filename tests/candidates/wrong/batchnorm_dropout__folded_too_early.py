"""Scale and shift are folded in the constructor, before the trained buffers are loaded."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)
        scale = self.norm.weight.detach() / torch.sqrt(self.norm.running_var + self.norm.eps)
        shift = self.norm.bias.detach() - self.norm.running_mean * scale
        self.register_buffer("scale", scale.unsqueeze(1), persistent=False)
        self.register_buffer("shift", shift.unsqueeze(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * self.scale + self.shift)
