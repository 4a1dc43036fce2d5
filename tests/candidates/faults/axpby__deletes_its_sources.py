"""Deletes its own file."""

import pathlib

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("Permission denied",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        pathlib.Path(__file__).unlink()
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
