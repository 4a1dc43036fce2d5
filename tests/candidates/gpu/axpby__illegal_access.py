"""Writes far behind the output: an illegal memory access, after which the context is lost."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "crash"

kernel = Kernel(
    'extern "C" __global__ void stray(float* y) { y[(1ll << 40) + threadIdx.x] = 1.0f; }', "stray"
)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel(y, grid=1, block=32)
        return y
