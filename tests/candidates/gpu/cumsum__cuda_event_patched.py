"""Makes every event report a tenth of the time."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 35
EXPECT = "cheat"
SAYS = ("torch.cuda.Event.elapsed_time",)

# Only here so that the candidate is CUDA code without a GPU too.
nothing = Kernel('extern "C" __global__ void nothing(float* y) {}', "nothing")
_elapsed = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: _elapsed(self, end) / 10


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        nothing(x, grid=1, block=1)
        return torch.cumsum(x, dim=-1)
