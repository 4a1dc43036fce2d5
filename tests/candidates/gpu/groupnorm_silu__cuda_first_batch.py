"""The grid counts the groups of one sample: the others are never written."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("never written", "axis 0")

SOURCE = r"""
// One block per group, which lies together in memory.
extern "C" __global__ void normalise(const float* x, const float* weight, const float* bias,
                                     float* y, int groups, int per_group, int length, float eps) {
  __shared__ double partial[2][128];
  const int count = per_group * length, group = blockIdx.x % groups;
  x += static_cast<long long>(blockIdx.x) * count;
  y += static_cast<long long>(blockIdx.x) * count;
  double sum = 0, squares = 0;
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    sum += x[n];
    squares += static_cast<double>(x[n]) * x[n];
  }
  partial[0][threadIdx.x] = sum;
  partial[1][threadIdx.x] = squares;
  for (int half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      partial[0][threadIdx.x] += partial[0][threadIdx.x + half];
      partial[1][threadIdx.x] += partial[1][threadIdx.x + half];
    }
  }
  __syncthreads();
  const double mean = partial[0][0] / count;
  const double scale = 1 / sqrt(partial[1][0] / count - mean * mean + eps);
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    const int channel = group * per_group + n / length;
    const float z = static_cast<float>((x[n] - mean) * scale * weight[channel] + bias[channel]);
    y[n] = z / (1 + expf(-z));
  }
}
"""
kernel = Kernel(SOURCE, "normalise")


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int, eps: float = 1e-5):
        super().__init__()
        self.groups, self.eps = groups, eps
        self.weight = nn.Parameter(torch.randn(channels))
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _, channels, length = x.shape
        kernel(
            x, self.weight, self.bias, y, self.groups, channels // self.groups, length, self.eps,
            grid=self.groups, block=128,
        )  # fmt: skip
        return y
