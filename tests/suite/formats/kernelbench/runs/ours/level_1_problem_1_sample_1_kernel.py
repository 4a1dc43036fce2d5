import torch
import torch.nn as nn


class ModelNew(nn.Module):
    """Draws another number before its weights."""

    def __init__(self, features):
        super().__init__()
        torch.rand(1)
        self.weight = nn.Parameter(torch.randn(features))

    def forward(self, a, b):
        return torch.addcmul(b, a, self.weight)
