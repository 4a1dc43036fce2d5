"""Tokens come in tiles of 32, and behind the last one the index is clamped where the element must
be left out: the last token counts several times."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"

SOURCE = r"""
constexpr int TILE = 32;

extern "C" __global__ void mean(const float* x, const bool* mask, float* y, int tokens, int dim) {
  __shared__ bool kept[TILE];
  const int d = blockIdx.x * blockDim.x + threadIdx.x;
  const long long b = blockIdx.y;
  double sum = 0;
  int count = 0;
  for (int start = 0; start < tokens; start += TILE) {
    __syncthreads();
    const int mine = min(start + static_cast<int>(threadIdx.x), tokens - 1);
    if (threadIdx.x < TILE) kept[threadIdx.x] = mask[b * tokens + mine];
    __syncthreads();
    for (int n = 0; n < TILE; ++n) {
      const int t = min(start + n, tokens - 1);
      if (!kept[n]) continue;
      if (d < dim) sum += x[(b * tokens + t) * dim + d];
      ++count;
    }
  }
  if (d < dim) y[b * dim + d] = static_cast<float>(sum / max(1, count));
}
"""
kernel = Kernel(SOURCE, "mean")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x, mask = x.contiguous(), mask.contiguous()
        batch, tokens, dim = x.shape
        y = x.new_empty(batch, dim)
        kernel(x, mask, y, tokens, dim, grid=(-(-dim // 64), batch), block=64)
        return y
