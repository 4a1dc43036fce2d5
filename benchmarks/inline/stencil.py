"""Weights in constant memory and a counter in a device variable."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <torch/extension.h>
#include <vector>

constexpr int RADIUS = 2;
__constant__ float weights[2 * RADIUS + 1];
__device__ unsigned int written;

__global__ void stencil_kernel(const float* x, float* y, int columns) {
  const int c = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * columns;
  if (c >= columns) return;
  float sum = 0.0f;
  for (int k = -RADIUS; k <= RADIUS; ++k) {
    if (c + k >= 0 && c + k < columns) sum += weights[k + RADIUS] * x[row + c + k];
  }
  y[row + c] = sum;
  atomicAdd(&written, 1u);
}

torch::Tensor stencil(torch::Tensor x) {
  const std::vector<float> values = {0.1f, 0.2f, 0.4f, 0.2f, 0.1f};
  const unsigned int zero = 0;
  cudaMemcpyToSymbol(weights, values.data(), values.size() * sizeof(float));
  cudaMemcpyToSymbol(written, &zero, sizeof(zero));
  auto y = torch::empty_like(x);
  const int columns = x.size(1);
  dim3 grid((columns + 63) / 64, x.size(0));
  stencil_kernel<<<grid, 64>>>(x.data_ptr<float>(), y.data_ptr<float>(), columns);
  unsigned int count = 0;
  cudaMemcpyFromSymbol(&count, written, sizeof(count));
  TORCH_CHECK(count == y.numel(), "wrote ", count, " elements");
  return y;
}
"""

extension = load_inline(
    name="inline_stencil",
    cpp_sources="torch::Tensor stencil(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["stencil"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.stencil(x)
