"""The launch asks for more shared memory than there is, and nobody looks at the error."""

import contextlib

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 33
EXPECT = "wrong"
SAYS = ("never written",)

SOURCE = r"""
extern "C" __global__ void axpby(const float* x, const float* z, float* y, float alpha, float beta,
                                 int columns, int valid) {
  extern __shared__ float row[];
  const int first = blockIdx.x * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    row[0] = x[first + c];
    y[first + c] = c < valid ? alpha * x[first + c] + beta * z[first + c] : x[first + c];
  }
}
"""
kernel = Kernel(SOURCE, "axpby")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = torch.empty_like(x)
        with contextlib.suppress(Exception):
            kernel(x, z, y, float(alpha), float(beta), x.shape[1], valid, grid=x.shape[0],
                   block=128, shared=1 << 30)  # fmt: skip
        return y
