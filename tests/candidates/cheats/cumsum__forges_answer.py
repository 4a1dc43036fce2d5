"""Sends a well-formed answer of its own: no value that the judge could take for a verdict."""

import os
import socket

import torch
import torch.nn as nn

from kernelproof.worker import wire

WAY = 10
EXPECT = "crash"
SAYS = ("nonsense",)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for fd in range(3, 64):
            try:
                sock = socket.socket(fileno=os.dup(fd))
                wire.send(sock, {"answer": {"k": "value", "v": "pass"}})
            except (OSError, wire.Closed):
                continue
        return torch.zeros_like(x)
