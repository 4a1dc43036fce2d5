"""The number of blocks is rounded down: the end of the output is never written."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("never written",)

SOURCE = r"""
extern "C" __global__ void axpby(const float* x, const float* z, float* y, float alpha, float beta,
                                 int columns, int valid, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = i % columns < valid ? alpha * x[i] + beta * z[i] : x[i];
}
"""
kernel = Kernel(SOURCE, "axpby")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        a, b = x.float().contiguous(), z.float().contiguous()
        y = torch.empty_like(a)
        blocks = max(1, y.numel() // 256)
        kernel(a, b, y, alpha, beta, x.shape[1], valid, y.numel(), grid=blocks, block=256)
        return y.to(x.dtype)
