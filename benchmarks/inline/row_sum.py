"""A reduction in shared memory."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <torch/extension.h>

template <int THREADS>
__global__ void row_sum_kernel(const float* x, float* y, int columns) {
  __shared__ float part[THREADS];
  float sum = 0.0f;
  for (int c = threadIdx.x; c < columns; c += THREADS) sum += x[blockIdx.x * columns + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}

torch::Tensor row_sum(torch::Tensor x) {
  auto y = torch::empty({x.size(0)}, x.options());
  row_sum_kernel<128><<<x.size(0), 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""

extension = load_inline(
    name="inline_row_sum",
    cpp_sources="torch::Tensor row_sum(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["row_sum"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.row_sum(x)
