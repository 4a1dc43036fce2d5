"""Rows of 64 000 bytes in shared memory, with the opt-in."""

import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <torch/extension.h>

template <typename T>
__global__ void reverse_kernel(const T* x, T* y, int columns) {
  extern __shared__ unsigned char memory[];
  T* row = reinterpret_cast<T*>(memory);
  for (int c = threadIdx.x; c < columns; c += blockDim.x) row[c] = x[blockIdx.x * columns + c];
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) {
    y[blockIdx.x * columns + c] = row[columns - 1 - c];
  }
}

torch::Tensor reverse(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int bytes = x.size(1) * sizeof(float);
  cudaFuncSetAttribute(reverse_kernel<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  reverse_kernel<float><<<x.size(0), 256, bytes>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}
"""

extension = load_inline(
    name="inline_reverse_opted_in",
    cpp_sources="torch::Tensor reverse(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["reverse"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.reverse(x)
