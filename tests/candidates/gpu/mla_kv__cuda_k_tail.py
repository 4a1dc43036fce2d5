"""Tiled products whose loop takes whole tiles of the reduced axis only: right where that is a
multiple of 16, else the rest is left out."""

import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("case one_of_each", "very element is zero")

SOURCE = r"""
constexpr int TILE = 16;

// out[m, n] = sum_k a[m, k] b[k, n]; rows of out are out_stride apart.
extern "C" __global__ void product(const float* a, const float* b, float* out, int rows,
                                   int columns, int depth, int out_stride) {
  __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE + 1];
  const int n = blockIdx.x * TILE + threadIdx.x;
  const long long m = blockIdx.y * TILE + threadIdx.y;
  float sum = 0;
  for (int start = 0; start + TILE <= depth; start += TILE) {
    a_tile[threadIdx.y][threadIdx.x] = m < rows ? a[m * depth + start + threadIdx.x] : 0.0f;
    b_tile[threadIdx.y][threadIdx.x] =
        n < columns ? b[static_cast<long long>(start + threadIdx.y) * columns + n] : 0.0f;
    __syncthreads();
    for (int k = 0; k < TILE; ++k) sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
    __syncthreads();
  }
  if (m < rows && n < columns) out[m * out_stride + n] = sum;
}
"""
kernel = Kernel(SOURCE, "product")


def product(a, b, out, stride):
    rows, (depth, columns) = a.shape[0], b.shape
    grid = (-(-columns // 16), -(-rows // 16))
    kernel(a, b, out, rows, columns, depth, stride, grid=grid, block=(16, 16))


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        batch, seq, model = hidden.shape
        tokens, (rank, columns) = batch * seq, w_up_k.shape
        out = hidden.new_empty(tokens, 2, columns)
        if tokens:
            latent = hidden.new_empty(tokens, rank)
            product(hidden.reshape(tokens, model).contiguous(), w_down.contiguous(), latent, rank)
            product(latent, w_up_k.contiguous(), out, 2 * columns)
            product(latent, w_up_v.contiguous(), out[:, 1], 2 * columns)
        return out.view(batch, seq, 2, self.kv_heads, columns // self.kv_heads)
