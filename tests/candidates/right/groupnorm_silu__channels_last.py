"""Channels last inside, and the output handed back as a view with those strides."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.transpose(1, 2).contiguous()  # (B, L, C)
        split = last.unflatten(2, (self.groups, -1))
        variance, mean = torch.var_mean(split, dim=(1, 3), correction=0, keepdim=True)
        z = ((split - mean) * torch.rsqrt(variance + self.eps)).flatten(2)
        z = z * self.weight + self.bias
        return (z / (1 + torch.exp(-z))).transpose(1, 2)
