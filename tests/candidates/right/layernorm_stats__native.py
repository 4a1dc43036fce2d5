"""PyTorch's fused layer normalisation."""

EXPECT = "pass"

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        # Differences from the first column: the statistics of wide offsets lose no digits, and
        # the fused kernel's own one-pass variance is not trusted with them.
        wide = x.float()
        first = wide[:, :1]
        y, mean, rstd = torch.native_layer_norm(
            wide - first, [wide.shape[1]], weight.float(), bias.float(), self.eps
        )
        mean = mean.view(-1) + first.squeeze(1)
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.view(-1).to(x.dtype)}
