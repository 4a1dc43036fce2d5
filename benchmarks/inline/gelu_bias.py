"""Elementwise, four at a time, with a bounds check."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

#define CHECK_CUDA(x) TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor")
#define CHECK_INPUT(x) CHECK_CUDA(x); TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

__device__ __forceinline__ float gelu(float v) {
  return 0.5f * v * (1.0f + erff(v * 0.70710678f));
}

__global__ void gelu_bias_kernel(const float4* __restrict__ x, const float4* __restrict__ bias,
                                 float4* __restrict__ y, const int count, const int width) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float4 a = x[i], b = bias[i % width];
  y[i] = make_float4(gelu(a.x + b.x), gelu(a.y + b.y), gelu(a.z + b.z), gelu(a.w + b.w));
}

torch::Tensor gelu_bias(torch::Tensor x, torch::Tensor bias) {
  CHECK_INPUT(x);
  CHECK_INPUT(bias);
  const at::cuda::OptionalCUDAGuard guard(x.device());
  auto y = torch::empty(x.sizes(), x.options().device(torch::kCUDA));
  const int count = x.numel() / 4, threads = 256, blocks = (count + threads - 1) / threads;
  gelu_bias_kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
      reinterpret_cast<const float4*>(x.data_ptr<float>()),
      reinterpret_cast<const float4*>(bias.data_ptr<float>()),
      reinterpret_cast<float4*>(y.data_ptr<float>()), count, int(bias.size(0)) / 4);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""

extension = load_inline(
    name="inline_gelu_bias",
    cpp_sources="torch::Tensor gelu_bias(torch::Tensor x, torch::Tensor bias);",
    cuda_sources=SOURCE,
    functions=["gelu_bias"],
)


class ModelNew(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return extension.gelu_bias(x.contiguous(), self.bias)
