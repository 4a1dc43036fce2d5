"""Layer norm over AT_DISPATCH, with sums in float."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <torch/extension.h>
#include <type_traits>

template <typename scalar_t, typename acc_t = float>
__global__ void layernorm_kernel(const scalar_t* __restrict__ x,
                                 const scalar_t* __restrict__ weight,
                                 const scalar_t* __restrict__ bias, scalar_t* __restrict__ y,
                                 int width, acc_t eps) {
  __shared__ acc_t sums[256];
  const scalar_t* row = x + static_cast<int64_t>(blockIdx.x) * width;
  const auto reduce = [&](acc_t value) {
    __syncthreads();
    sums[threadIdx.x] = value;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half >>= 1) {
      if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
      __syncthreads();
    }
    return sums[0];
  };
  acc_t sum = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) sum += static_cast<acc_t>(row[c]);
  const acc_t mean = reduce(sum) / width;
  acc_t square = 0;
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const acc_t d = static_cast<acc_t>(row[c]) - mean;
    square += d * d;
  }
  const acc_t scale = rsqrtf(reduce(square) / width + eps);
  for (int c = threadIdx.x; c < width; c += blockDim.x) {
    const acc_t v = (static_cast<acc_t>(row[c]) - mean) * scale;
    y[static_cast<int64_t>(blockIdx.x) * width + c] =
        static_cast<scalar_t>(v * static_cast<acc_t>(weight[c]) + static_cast<acc_t>(bias[c]));
  }
}

torch::Tensor layernorm(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
  auto y = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(
      torch::kHalf, torch::kBFloat16, x.scalar_type(), "layernorm", ([&] {
        layernorm_kernel<scalar_t><<<x.size(0), 256>>>(
            x.data_ptr<scalar_t>(), weight.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(),
            y.data_ptr<scalar_t>(), x.size(1), static_cast<float>(eps));
      }));
  return y;
}
"""

extension = load_inline(
    name="inline_layernorm",
    cpp_sources="torch::Tensor layernorm(torch::Tensor x, torch::Tensor weight, "
    "torch::Tensor bias, double eps);",
    cuda_sources=SOURCE,
    functions=["layernorm"],
)


class ModelNew(nn.Module):
    def __init__(self, width=200):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return extension.layernorm(x, self.weight.to(x.dtype), self.bias.to(x.dtype), 1e-5)
