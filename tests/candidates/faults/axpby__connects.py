"""Asks the network."""

import socket

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("Errno",)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        socket.create_connection(("127.0.0.1", 9), timeout=1.0)
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
