"""Rows are read four elements at a time: from the second row on they need not be aligned to 16
bytes, which the load demands."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "crash"
SAYS = ("misaligned address",)

SOURCE = r"""
__device__ float sum_or_zero(float a, float b) {
  const float sum = a + b;
  return sum > 0 || sum != sum ? sum : 0.0f;
}

// One block per row.
extern "C" __global__ void add_relu(const float* x, const float* z, float* y, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  z += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  for (int n = threadIdx.x; n < columns / 4; n += blockDim.x) {
    const float4 a = reinterpret_cast<const float4*>(x)[n];
    const float4 b = reinterpret_cast<const float4*>(z)[n];
    reinterpret_cast<float4*>(y)[n] = make_float4(sum_or_zero(a.x, b.x), sum_or_zero(a.y, b.y),
                                                  sum_or_zero(a.z, b.z), sum_or_zero(a.w, b.w));
  }
  for (int c = columns / 4 * 4 + threadIdx.x; c < columns; c += blockDim.x)
    y[c] = sum_or_zero(x[c], z[c]);
}
"""
kernel = Kernel(SOURCE, "add_relu")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        a, b = x.float().contiguous(), z.float().contiguous()
        rows, columns = a.shape
        y = torch.empty_like(a)
        kernel(a, b, y, columns, grid=rows, block=64)
        return y.to(x.dtype)
