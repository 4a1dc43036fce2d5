"""Waits for a flag that nobody sets: a chunk that spins on its neighbour."""

import torch
import torch.nn as nn

EXPECT = "timeout"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        ready = torch.zeros(1, dtype=torch.int32)
        while not ready.item():
            pass
        return torch.zeros_like(v)
