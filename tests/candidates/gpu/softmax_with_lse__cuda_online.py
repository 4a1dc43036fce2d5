"""One warp per row reads it once: each lane keeps a running maximum and sum, merged by shuffles."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
#include <cuda_fp16.h>

template <class T>
__global__ void softmax(const T* x, T* p, T* lse, int rows, int columns) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  x += static_cast<long long>(row) * columns;
  p += static_cast<long long>(row) * columns;
  // Finite, so that lanes without a column merge without inf - inf.
  float top = -3.402823466e38f, sum = 0;
  for (int c = lane; c < columns; c += 32) {
    const float value = static_cast<float>(x[c]), higher = fmaxf(top, value);
    sum = sum * expf(top - higher) + expf(value - higher);
    top = higher;
  }
  for (int step = 16; step > 0; step /= 2) {
    const float other_top = __shfl_xor_sync(~0u, top, step);
    const float other_sum = __shfl_xor_sync(~0u, sum, step);
    const float higher = fmaxf(top, other_top);
    sum = sum * expf(top - higher) + other_sum * expf(other_top - higher);
    top = higher;
  }
  for (int c = lane; c < columns; c += 32)
    p[c] = static_cast<T>(expf(static_cast<float>(x[c]) - top) / sum);
  if (lane == 0) lse[row] = static_cast<T>(top + logf(sum));
}
"""
ROWS_PER_BLOCK = 4
KERNELS = {
    torch.float32: Kernel(SOURCE, "softmax<float>"),
    torch.float16: Kernel(SOURCE, "softmax<__half>"),
}


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        rows, columns = x.shape
        p, lse = torch.empty_like(x), x.new_empty(rows)
        blocks = -(-rows // ROWS_PER_BLOCK)
        KERNELS[x.dtype](x, p, lse, rows, columns, grid=blocks, block=32 * ROWS_PER_BLOCK)
        return p, lse
