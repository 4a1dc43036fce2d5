"""The down-projection split over the model width; the up-projection adds the partial sums."""

import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
extern "C" __global__ void down(const float* hidden, const float* w_down, float* partial,
                                int tokens, int model, int rank) {
  const int r = blockIdx.y * blockDim.x + threadIdx.x;
  const int splits = gridDim.z, token = blockIdx.x, split = blockIdx.z;
  if (r >= rank) return;
  const int length = (model + splits - 1) / splits;
  const int first = split * length, last = min(model, first + length);  // may be empty
  float sum = 0;
  for (int m = first; m < last; ++m)
    sum += hidden[static_cast<long long>(token) * model + m] *
           w_down[static_cast<long long>(m) * rank + r];
  partial[(static_cast<long long>(split) * tokens + token) * rank + r] = sum;
}

extern "C" __global__ void up(const float* partial, const float* w_up_k, const float* w_up_v,
                              float* out, int tokens, int splits, int rank, int columns) {
  extern __shared__ float latent[];  // (rank)
  const long long token = blockIdx.x;
  for (int r = threadIdx.x; r < rank; r += blockDim.x) {
    float sum = 0;
    for (int split = 0; split < splits; ++split)
      sum += partial[(static_cast<long long>(split) * tokens + token) * rank + r];
    latent[r] = sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < 2 * columns; c += blockDim.x) {
    const float* w_up = c < columns ? w_up_k + c : w_up_v + (c - columns);
    float sum = 0;
    for (int r = 0; r < rank; ++r) sum += latent[r] * w_up[static_cast<long long>(r) * columns];
    out[token * 2 * columns + c] = sum;
  }
}
"""
SPLITS = 4
down, up = Kernel(SOURCE, "down"), Kernel(SOURCE, "up")


class ModelNew(nn.Module):
    def __init__(self, kv_heads: int = 4):
        super().__init__()
        self.kv_heads = kv_heads

    def forward(self, hidden, w_down, w_up_k, w_up_v):
        hidden, w_down = hidden.contiguous(), w_down.contiguous()
        w_up_k, w_up_v = w_up_k.contiguous(), w_up_v.contiguous()
        batch, seq, model = hidden.shape
        tokens, (rank, columns) = batch * seq, w_up_k.shape
        out = hidden.new_empty(batch, seq, 2, self.kv_heads, columns // self.kv_heads)
        if out.numel() == 0:
            return out
        partial = hidden.new_empty(SPLITS, tokens, rank)
        # Tokens along x: the other axes end at 65,535 blocks.
        grid = (tokens, -(-rank // 64), SPLITS)
        down(hidden, w_down, partial, tokens, model, rank, grid=grid, block=64)
        up(
            partial, w_up_k, w_up_v, out, tokens, SPLITS, rank, columns,
            grid=tokens, block=128, shared=4 * rank,
        )  # fmt: skip
        return out
