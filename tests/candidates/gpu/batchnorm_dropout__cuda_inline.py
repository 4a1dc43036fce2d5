"""Normalise, scale, shift and clamp in one kernel, through `load_inline`; one block per channel."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

DECLARATION = """
torch::Tensor normalise(torch::Tensor x, torch::Tensor mean, torch::Tensor var,
                        torch::Tensor weight, torch::Tensor bias, double eps);
"""

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

__global__ void normalise_kernel(const float* x, const float* mean, const float* var,
                                 const float* weight, const float* bias, float* y, int channels,
                                 int64_t length, float eps) {
  const int channel = blockIdx.x % channels;
  const float centre = mean[channel], gain = weight[channel], shift = bias[channel];
  const float scale = 1.0f / sqrtf(var[channel] + eps);
  const int64_t row = blockIdx.x * length;
  for (int64_t n = threadIdx.x; n < length; n += blockDim.x) {
    const float z = (x[row + n] - centre) * scale * gain + shift;
    y[row + n] = z < 0.0f ? 0.0f : z;
  }
}

torch::Tensor normalise(torch::Tensor x, torch::Tensor mean, torch::Tensor var,
                        torch::Tensor weight, torch::Tensor bias, double eps) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const auto blocks = x.size(0) * x.size(1);
  normalise_kernel<<<blocks, 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), mean.data_ptr<float>(), var.data_ptr<float>(),
      weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(), x.size(1), x.size(2),
      eps);
  return y;
}
"""

extension = load_inline(
    name="kernelproof_fixture_batchnorm_inline",
    cpp_sources=DECLARATION,
    cuda_sources=SOURCE,
    functions=["normalise"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, p: float = 0.3):
        super().__init__()
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.norm
        return extension.normalise(
            x, n.running_mean, n.running_var, n.weight.detach(), n.bias.detach(), n.eps
        )
