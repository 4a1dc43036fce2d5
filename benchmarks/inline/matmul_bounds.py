"""A matrix product in tiles that reads past the last row of b."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "wrong"
FINDING = "out of bounds"
SOURCE = r"""
#include <torch/extension.h>

#define TILE 16

__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int k, int n) {
  __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
  const int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += TILE) {
    const int i = start + threadIdx.x, j = start + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = row < m && i < k ? a[row * k + i] : 0.0f;
    right[threadIdx.y][threadIdx.x] = b[j * n + column];  // finding
    __syncthreads();
    for (int t = 0; t < TILE; ++t) sum += left[threadIdx.y][t] * right[t][threadIdx.x];
    __syncthreads();
  }
  if (row < m && column < n) c[row * n + column] = sum;
}

torch::Tensor matmul(torch::Tensor a, torch::Tensor b) {
  TORCH_CHECK(a.device().is_cuda() && b.device().type() == torch::kCUDA);
  const int m = a.size(0), k = a.size(1), n = b.size(1);
  auto c = torch::zeros({m, n}, a.options());
  dim3 block(TILE, TILE);
  dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
  matmul_kernel<<<grid, block>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), m,
                                 k, n);
  return c;
}
"""

extension = load_inline(
    name="inline_matmul_bounds",
    cpp_sources="torch::Tensor matmul(torch::Tensor a, torch::Tensor b);",
    cuda_sources=SOURCE,
    functions=["matmul"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return extension.matmul(a, b)
