"""The right numbers in a tuple, where a dict was asked for."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float()
        mean = wide.mean(dim=-1, keepdim=True)
        rstd = torch.rsqrt((wide - mean).square().mean(dim=-1, keepdim=True) + self.eps)
        y = ((wide - mean) * rstd * weight.float() + bias.float()).to(x.dtype)
        return y, mean.squeeze(-1).to(x.dtype), rstd.squeeze(-1).to(x.dtype)
