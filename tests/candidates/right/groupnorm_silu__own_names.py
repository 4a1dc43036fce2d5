"""Own names for the parameters (they match by order and shape), affine step folded."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, length = x.shape
        grouped = x.reshape(batch, self.groups, -1)
        mean = grouped.mean(dim=2, keepdim=True)
        centred = grouped - mean
        rstd = torch.rsqrt(centred.square().mean(dim=2, keepdim=True) + self.eps)
        z = (centred * rstd).view(batch, channels, length)
        z = torch.addcmul(self.beta.unsqueeze(1), z, self.gamma.unsqueeze(1))
        return z / (1 + torch.exp(-z))
