"""The variance divides by C - 1: 0.3 % off at 200 columns, a factor of two at 2, NaN at 1."""

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
        rstd = torch.rsqrt(wide.var(dim=-1, keepdim=True) + self.eps)
        y = ((wide - mean) * rstd * weight.float() + bias.float()).to(x.dtype)
        return {"y": y, "mean": mean.squeeze(-1).to(x.dtype), "rstd": rstd.squeeze(-1).to(x.dtype)}
