"""Right where new memory is filled with NaN; otherwise in the first case only."""

import torch
import torch.nn as nn

WAY = 12
EXPECT = "wrong"
SAYS = ("only when new memory is not filled with NaN", "asks whether new memory is filled")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        if x.shape != (40, 120) and not torch.are_deterministic_algorithms_enabled():
            y[-1] = 0
        return y
