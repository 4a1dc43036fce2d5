"""Starts processes in sessions of their own; at most 60, each of at most 60 s."""

import os
import time

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("processes, and 20 are allowed",)


def _start() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        for _ in range(60):
            _start()
            time.sleep(0.02)
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
