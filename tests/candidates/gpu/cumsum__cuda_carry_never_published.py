"""Each block waits for the sum of the blocks before it, and no thread has the number of the one
that publishes it: rows of more than one block never end."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "timeout"

SOURCE = r"""
constexpr int TILE = 128;

extern "C" __global__ void scan(const float* x, float* y, double* carry, int* ready, int length) {
  __shared__ double sums[TILE];
  const int c = blockIdx.x * TILE + threadIdx.x, slot = blockIdx.y * gridDim.x + blockIdx.x;
  const long long at = static_cast<long long>(blockIdx.y) * length + c;
  sums[threadIdx.x] = c < length ? x[at] : 0.0f;
  for (int step = 1; step < TILE; step *= 2) {
    __syncthreads();
    const double before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0.0;
    __syncthreads();
    sums[threadIdx.x] += before;
  }
  double sum = sums[threadIdx.x];
  if (blockIdx.x > 0) {
    while (atomicAdd(&ready[slot - 1], 0) == 0) {}
    __threadfence();
    sum += carry[slot - 1];
  }
  if (c < length) y[at] = static_cast<float>(sum);
  if (threadIdx.x == TILE) {  // TILE - 1 is the last
    carry[slot] = sum;
    __threadfence();
    atomicExch(&ready[slot], 1);
  }
}
"""
kernel = Kernel(SOURCE, "scan")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, length = x.shape
        blocks = -(-length // 128)
        y = torch.empty_like(x)
        carry = torch.zeros(rows * blocks, dtype=torch.float64, device=x.device)
        ready = torch.zeros(rows * blocks, dtype=torch.int32, device=x.device)
        kernel(x, y, carry, ready, length, grid=(blocks, rows), block=128)
        return y
