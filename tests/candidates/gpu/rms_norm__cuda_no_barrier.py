"""Three warps copy a tile of the row to shared memory and the fourth adds its squares, without a
barrier in between: it adds what the tile held before."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"

SOURCE = r"""
constexpr int TILE = 96;

extern "C" __global__ void normalise(const float* x, const float* weight, float* y, int columns,
                                     float eps) {
  __shared__ float tile[TILE], scale;
  x += static_cast<long long>(blockIdx.x) * columns;
  y += static_cast<long long>(blockIdx.x) * columns;
  const int lane = threadIdx.x % 32;
  float squares = 0;
  for (int start = 0; start < columns; start += TILE) {
    if (threadIdx.x >= 32) {
      const int at = threadIdx.x - 32;
      tile[at] = start + at < columns ? x[start + at] : 0.0f;
    }
    // A barrier belongs here.
    if (threadIdx.x < 32)
      for (int at = lane; at < TILE; at += 32) squares += tile[at] * tile[at];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    for (int step = 16; step > 0; step /= 2) squares += __shfl_xor_sync(~0u, squares, step);
    if (lane == 0) scale = 1.0f / sqrtf(squares / columns + eps);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < columns; c += blockDim.x) y[c] = x[c] * scale * weight[c];
}
"""
kernel = Kernel(SOURCE, "normalise")


class ModelNew(nn.Module):
    def __init__(self, columns: int, eps: float = 1e-6, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.randn(columns).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().contiguous()
        rows, columns = wide.shape
        y = torch.empty_like(wide)
        kernel(wide, self.weight.float(), y, columns, self.eps, grid=rows, block=128)
        return y.to(x.dtype)
