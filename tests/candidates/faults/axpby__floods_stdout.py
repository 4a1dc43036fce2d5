"""Right, and prints 1 GB on its first call."""

import os

import torch
import torch.nn as nn

EXPECT = "pass"


_text = [b"x" * (1 << 20)] * 1024


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        while _text:
            os.write(1, _text.pop())
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
