"""Division by a multiplication and a shift, whose product leaves 32 bits from row 256 on."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("case large", "256", "of axis 0")

SOURCE = r"""
extern "C" __global__ void axpby(const float* x, const float* z, float* y, float alpha, float beta,
                                 unsigned columns, unsigned reciprocal, int valid, unsigned count) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const unsigned row = (i * reciprocal) >> 24;  // i / columns
  const unsigned column = i - row * columns;
  y[i] = column < valid ? alpha * x[i] + beta * z[i] : x[i];
}
"""
kernel = Kernel(SOURCE, "axpby")


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        a, b = x.float().contiguous(), z.float().contiguous()
        y = torch.empty_like(a)
        columns, count = x.shape[1], y.numel()
        reciprocal = (1 << 24) // columns + 1
        kernel(
            a, b, y, float(alpha), float(beta), columns, reciprocal, valid, count,
            grid=-(-count // 256), block=256,
        )  # fmt: skip
        return y.to(x.dtype)
