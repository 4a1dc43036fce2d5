"""E[x^2] - mean^2 in fp32: no digits are left where the mean is large beside the spread."""

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
        variance = wide.square().mean(dim=-1, keepdim=True) - mean.square()
        rstd = torch.rsqrt(variance.clamp(min=0) + self.eps)
        y = ((wide - mean) * rstd * weight.float() + bias.float()).to(x.dtype)
        return {"y": y, "mean": mean.squeeze(-1).to(x.dtype), "rstd": rstd.squeeze(-1).to(x.dtype)}
