"""Replaces the code of the function that times it."""

import torch
import torch.nn as nn

from kernelproof.worker import sampling

WAY = 9
EXPECT = "cheat"
SAYS = ("kernelproof.worker.sampling",)


def _forged(self, clock, calls, sets):
    return {"readings": [1e-9] * calls, "kept": 0}


sampling.Sampler.sample.__code__ = _forged.__code__


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)
