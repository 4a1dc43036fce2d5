"""The shuffles are 16 lanes wide: the two halves of the warp never meet."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"

SOURCE = r"""
extern "C" __global__ void softmax(const float* x, float* p, float* lse, int columns) {
  x += static_cast<long long>(blockIdx.x) * columns;
  p += static_cast<long long>(blockIdx.x) * columns;
  float top = -3.402823466e38f;
  for (int c = threadIdx.x; c < columns; c += 32) top = fmaxf(top, x[c]);
  for (int step = 8; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step, 16));
  float sum = 0;
  for (int c = threadIdx.x; c < columns; c += 32) sum += expf(x[c] - top);
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step, 16);
  for (int c = threadIdx.x; c < columns; c += 32) p[c] = expf(x[c] - top) / sum;
  if (threadIdx.x == 0) lse[blockIdx.x] = top + logf(sum);
}
"""
kernel = Kernel(SOURCE, "softmax")


class ModelNew(nn.Module):
    def forward(self, x):
        wide = x.float().contiguous()
        rows, columns = wide.shape
        p, lse = torch.empty_like(wide), wide.new_empty(rows)
        kernel(wide, p, lse, columns, grid=rows, block=32)
        return p.to(x.dtype), lse.to(x.dtype)
