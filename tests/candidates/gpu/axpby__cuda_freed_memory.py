"""Returns new memory as it is, hoping that the reference's output was freed there."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 1
EXPECT = "wrong"

nothing = Kernel('extern "C" __global__ void nothing(float* y) {}', "nothing")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = torch.empty_like(x)
        nothing(y, grid=1, block=32)
        return y
