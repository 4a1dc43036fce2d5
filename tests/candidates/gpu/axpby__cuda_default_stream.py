"""Launched on the default stream whatever stream torch is on, as ``<<<grid, block>>>`` without a
stream is: right, and noted."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
extern "C" __global__ void axpby(const float* x, const float* z, float* y, float alpha, float beta,
                                 int columns, int valid) {
  const long long row = static_cast<long long>(blockIdx.x) * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[row + c] = c < valid ? alpha * x[row + c] + beta * z[row + c] : x[row + c];
}
"""
kernel = Kernel(SOURCE, "axpby")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.default_stream()):
            wide, other = x.float().contiguous(), z.float().contiguous()
            y = torch.empty_like(wide)
            rows, columns = x.shape
            kernel(wide, other, y, float(alpha), float(beta), columns, valid, grid=rows, block=128)
            return y.to(x.dtype)
