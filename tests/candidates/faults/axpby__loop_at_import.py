"""Never finishes its import."""

import torch
import torch.nn as nn

EXPECT = "timeout"
SAYS = ("no answer to 'load' within",)

while True:
    pass


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
