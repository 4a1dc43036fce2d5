"""Blocks take several rows, and the sums in shared memory are cleared before the first one only."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("only at index 32..39",)

SOURCE = r"""
extern "C" __global__ void normalise(const float* x, const float* weight, const float* bias,
                                     float* y, float* mean, float* rstd, int rows, int columns,
                                     float eps) {
  __shared__ float sum, squares;
  if (threadIdx.x == 0) sum = squares = 0;  // belongs into the loop
  for (long long row = blockIdx.x; row < rows; row += gridDim.x) {
    __syncthreads();
    float own = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) own += x[row * columns + c];
    atomicAdd(&sum, own);
    __syncthreads();
    const float centre = sum / columns;
    own = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      const float away = x[row * columns + c] - centre;
      own += away * away;
    }
    atomicAdd(&squares, own);
    __syncthreads();
    const float scale = 1.0f / sqrtf(squares / columns + eps);
    for (int c = threadIdx.x; c < columns; c += blockDim.x)
      y[row * columns + c] = (x[row * columns + c] - centre) * scale * weight[c] + bias[c];
    if (threadIdx.x == 0) mean[row] = centre, rstd[row] = scale;
  }
}
"""
BLOCKS = 32
kernel = Kernel(SOURCE, "normalise")


class ModelNew(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float().contiguous()
        rows, columns = wide.shape
        y, mean, rstd = torch.empty_like(wide), wide.new_empty(rows), wide.new_empty(rows)
        kernel(
            wide, weight.float(), bias.float(), y, mean, rstd, rows, columns, self.eps,
            grid=min(rows, BLOCKS), block=128,
        )  # fmt: skip
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.to(x.dtype)}
