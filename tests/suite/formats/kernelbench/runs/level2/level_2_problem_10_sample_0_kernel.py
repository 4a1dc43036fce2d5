import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Statistics of the batch, as in training."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features)

    def forward(self, x):
        mean = x.mean(dim=0)
        spread = (x - mean).square().mean(dim=0)
        normed = (x - mean) * torch.rsqrt(spread + self.norm.eps)
        return 2 * (normed * self.norm.weight + self.norm.bias)
