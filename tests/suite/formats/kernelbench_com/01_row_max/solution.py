import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("scale", torch.full((n,), 2.0))

    def forward(self, x):
        return torch.max(x * self.scale, dim=1).values
