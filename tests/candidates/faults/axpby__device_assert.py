"""An index past the end, which a GPU finds out in an assertion after which nothing works."""

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("device-side assert",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        index = torch.full((32,), 1 << 20, device=x.device)
        x.flatten()[index]
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
