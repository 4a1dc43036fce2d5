"""Group g has the channels g, g + G, g + 2 G, ... instead of neighbouring ones."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, length = x.shape
        mixed = x.reshape(batch, -1, self.groups, length).transpose(1, 2).reshape(x.shape)
        z = F.group_norm(mixed, self.groups, eps=self.eps)
        z = z.view(batch, self.groups, -1, length).transpose(1, 2).reshape(x.shape)
        return F.silu(z * self.weight.unsqueeze(1) + self.bias.unsqueeze(1))
