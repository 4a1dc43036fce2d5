"""A misspelt name in CUDA source: the message has the compiler's line."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "compile_error"
SAYS = ('identifier "colums" is undefined',)

SOURCE = r"""
extern "C" __global__ void copy(const float* x, float* y, int columns) {
  for (int c = threadIdx.x; c < colums; c += blockDim.x)
    y[blockIdx.x * columns + c] = x[blockIdx.x * columns + c];
}
"""
kernel = Kernel(SOURCE, "copy")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel(x, y, x.shape[1], grid=x.shape[0], block=128)
        return y
