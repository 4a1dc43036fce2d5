"""Welford's update, column by column."""

EXPECT = "pass"

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float()
        mean = torch.zeros_like(wide[:, 0])
        squares = torch.zeros_like(mean)
        for count, column in enumerate(wide.unbind(dim=1), start=1):
            delta = column - mean
            mean = mean + delta / count
            squares = squares + delta * (column - mean)
        rstd = 1.0 / torch.sqrt(squares / wide.shape[1] + self.eps)
        y = (wide - mean.unsqueeze(1)) * rstd.unsqueeze(1) * weight.float() + bias.float()
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.to(x.dtype)}
