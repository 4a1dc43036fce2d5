"""Slow in the first calls, so that few calls are planned for it.

Harmless: the plan follows what the calls take, and all readings are kept.
"""

import time

import torch
import torch.nn as nn

WAY = 14
EXPECT = "pass"
TIMED = True


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls < 30:
            time.sleep(0.01)
        return torch.cumsum(x, dim=-1)
