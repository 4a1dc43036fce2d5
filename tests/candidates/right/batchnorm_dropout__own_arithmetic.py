"""The evaluation-mode arithmetic written out, from the buffers as they are at each call."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)  # holds the weights under the reference's names

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        norm = self.norm
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        centred = x - norm.running_mean.unsqueeze(1)
        return (centred * scale.unsqueeze(1) + norm.bias.unsqueeze(1)).clamp(min=0)
