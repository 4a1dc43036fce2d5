"""Weight and bias are taken by group where they go by channel; through `load_inline`."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "wrong"

DECLARATION = """
torch::Tensor normalise(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups,
                        double eps);
"""

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>

// One warp per group, which lies together in memory.
__global__ void normalise_kernel(const float* x, const float* weight, const float* bias, float* y,
                                 int groups, int64_t count, double eps) {
  const int group = blockIdx.x % groups;
  x += blockIdx.x * count;
  y += blockIdx.x * count;
  double sum = 0, squares = 0;
  for (int64_t n = threadIdx.x; n < count; n += 32) sum += x[n];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  const double mean = sum / count;
  for (int64_t n = threadIdx.x; n < count; n += 32) squares += (x[n] - mean) * (x[n] - mean);
  for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
  const double scale = 1 / sqrt(squares / count + eps);
  for (int64_t n = threadIdx.x; n < count; n += 32) {
    const float z = static_cast<float>((x[n] - mean) * scale * weight[group] + bias[group]);
    y[n] = z / (1 + expf(-z));
  }
}

torch::Tensor normalise(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups,
                        double eps) {
  x = x.contiguous();
  auto y = torch::empty_like(x);
  const int64_t blocks = x.size(0) * groups;
  normalise_kernel<<<blocks, 32, 0, c10::cuda::getCurrentCUDAStream()>>>(
      x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(),
      groups, x.numel() / blocks, eps);
  return y;
}
"""

extension = load_inline(
    name="kernelproof_fixture_groupnorm_inline",
    cpp_sources=DECLARATION,
    cuda_sources=SOURCE,
    functions=["normalise"],
)


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.weight.detach(), self.bias.detach()
        return extension.normalise(x, weight, bias, self.groups, self.eps)
