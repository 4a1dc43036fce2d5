"""Value and column packed in one 64-bit key with 13 bits for the column: 8192 columns at most."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("case wide", "integers differ")

SOURCE = r"""
typedef unsigned long long Key;

// Larger for larger values, and for the lower column among equal ones.
__device__ Key key_of(float value, int column) {
  const unsigned bits = __float_as_uint(value);
  const unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 13 | ((8191 - column) & 8191);
}

// One block per row: k times the largest key below the last.
extern "C" __global__ void topk(const float* x, long long* y, int columns, int k) {
  __shared__ Key best;
  x += static_cast<long long>(blockIdx.x) * columns;
  Key last = ~0ull;
  for (int n = 0; n < k; ++n) {
    if (threadIdx.x == 0) best = 0;
    __syncthreads();
    Key own = 0;
    for (int c = threadIdx.x; c < columns; c += blockDim.x) {
      const Key key = key_of(x[c], c);
      if (key < last && key > own) own = key;
    }
    atomicMax(&best, own);
    __syncthreads();
    last = best;
    if (threadIdx.x == 0) y[static_cast<long long>(blockIdx.x) * k + n] = 8191 - (last & 8191);
    __syncthreads();
  }
}
"""
kernel = Kernel(SOURCE, "topk")


class ModelNew(nn.Module):
    def __init__(self, k: int = 8):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float().contiguous()
        rows, columns = wide.shape
        y = torch.empty(rows, self.k, dtype=torch.int64, device=x.device)
        kernel(wide, y, columns, self.k, grid=rows, block=256)
        return y
