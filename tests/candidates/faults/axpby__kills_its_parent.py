"""Kills the process that watches over it."""

import os
import signal

import torch
import torch.nn as nn

EXPECT = "crash"


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        os.kill(os.getppid(), signal.SIGKILL)
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
