"""Looks up what others have been told."""

import torch
import torch.nn as nn

from kernelproof.home import home

EXPECT = "crash"
SAYS = ("Permission denied", "records.sqlite")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        (home() / "records.sqlite").read_bytes()
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
