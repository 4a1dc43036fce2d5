"""Leaves the process at once with the exit status of success."""

import os

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("ended with exit status 0",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        os._exit(0)
