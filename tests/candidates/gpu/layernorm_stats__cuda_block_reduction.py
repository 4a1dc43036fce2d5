"""Two passes, one block per row: sums by warp shuffles, then over the warps in shared memory."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
#include <cuda_bf16.h>

constexpr int WARPS = 8;

__device__ float block_sum(float value) {
  __shared__ float partial[WARPS];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();  // the partial sums of an earlier call may still be in use
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < WARPS; ++warp) sum += partial[warp];
  return sum;
}

template <class T>
__global__ void normalise(const T* x, const T* weight, const T* bias, T* y, T* mean, T* rstd,
                          int columns, float eps) {
  x += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) sum += static_cast<float>(x[c]);
  const float centre = block_sum(sum) / columns;
  float squares = 0;
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const float away = static_cast<float>(x[c]) - centre;
    squares += away * away;
  }
  const float scale = 1.0f / sqrtf(block_sum(squares) / columns + eps);
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    const float away = static_cast<float>(x[c]) - centre;
    const float gain = static_cast<float>(weight[c]), shift = static_cast<float>(bias[c]);
    y[c] = static_cast<T>(away * scale * gain + shift);
  }
  if (threadIdx.x == 0) {
    mean[blockIdx.x] = static_cast<T>(centre);
    rstd[blockIdx.x] = static_cast<T>(scale);
  }
}
"""
KERNELS = {
    torch.float32: Kernel(SOURCE, "normalise<float>"),
    torch.bfloat16: Kernel(SOURCE, "normalise<__nv_bfloat16>"),
}


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        rows, columns = x.shape
        y, mean, rstd = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        kernel = KERNELS[x.dtype]
        kernel(x, weight, bias, y, mean, rstd, columns, self.eps, grid=rows, block=256)
        return {"y": y, "mean": mean, "rstd": rstd}
