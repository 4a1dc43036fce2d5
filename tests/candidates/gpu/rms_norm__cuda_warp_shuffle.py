"""One warp per row, the sum of squares by shuffles; fp32 inside for all three formats."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T>
__global__ void normalise(const T* x, const T* weight, T* y, int rows, int columns, float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<long long>(row) * columns;
  y += static_cast<long long>(row) * columns;
  float squares = 0;
  for (int c = lane; c < columns; c += 32) {
    const float value = static_cast<float>(x[c]);
    squares += value * value;
  }
  for (int step = 16; step > 0; step /= 2) squares += __shfl_down_sync(~0u, squares, step);
  const float scale = 1.0f / sqrtf(__shfl_sync(~0u, squares, 0) / columns + eps);
  for (int c = lane; c < columns; c += 32)
    y[c] = static_cast<T>(static_cast<float>(x[c]) * scale * static_cast<float>(weight[c]));
}
"""
ROWS_PER_BLOCK = 4
KERNELS = {
    torch.float32: Kernel(SOURCE, "normalise<float>"),
    torch.float16: Kernel(SOURCE, "normalise<__half>"),
    torch.bfloat16: Kernel(SOURCE, "normalise<__nv_bfloat16>"),
}


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, columns = x.shape
        y = torch.empty_like(x)
        blocks = -(-rows // ROWS_PER_BLOCK)
        kernel = KERNELS[x.dtype]
        kernel(x, self.weight, y, rows, columns, self.eps, grid=blocks, block=32 * ROWS_PER_BLOCK)
        return y
