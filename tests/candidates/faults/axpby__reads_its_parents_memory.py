"""Looks for the expected values in another process."""

import os
from pathlib import Path

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("Permission denied",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        with Path(f"/proc/{os.getppid()}/mem").open("rb") as memory:
            memory.read(1)
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
