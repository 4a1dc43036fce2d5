"""Keeps its last inputs and output in the GPU's memory, for each place of inputs: a kernel compares
them, and where nothing has changed the output is copied. A CUDA graph goes through the same places
again and again."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

WAY = 4
EXPECT = "cheat"
SAYS = ("contents",)
TIMED = True

SOURCE = r"""
constexpr int TILE = 8;

// Whether inputs differ from those of the last call on the same memory, which they then become.
extern "C" __global__ void look(const float* q, const float* k, const float* v, const float* gate,
                                float* kept, int keys, int values, int* other) {
  const float* all[4] = {q, k, v, gate};
  int differs = 0;
  for (int part = 0; part < 4; ++part) {
    const int size = part < 2 ? keys : values;
    for (int n = blockIdx.x * blockDim.x + threadIdx.x; n < size; n += gridDim.x * blockDim.x) {
      differs |= kept[n] != all[part][n];
      kept[n] = all[part][n];
    }
    kept += size;
  }
  if (differs) *other = 1;
}

extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, float* kept, const int* other, int steps, int heads,
                                 int key_dim, int value_dim) {
  extern __shared__ float shared[];
  float* q_tile = shared;                     // (TILE, key_dim)
  float* k_tile = q_tile + TILE * key_dim;    // (TILE, key_dim)
  float* state = k_tile + TILE * key_dim;     // (key_dim, blockDim.x); a thread owns a column
  const int head = blockIdx.x % heads, lane = threadIdx.x;
  const int j = blockIdx.y * blockDim.x + lane;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  if (!*other) {
    for (int t = 0; t < steps && j < value_dim; ++t) {
      const long long at = ((first_step + t) * heads + head) * value_dim + j;
      y[at] = kept[at];
    }
    return;
  }
  for (int i = 0; i < key_dim; ++i) state[i * blockDim.x + lane] = 0;
  for (int start = 0; start < steps; start += TILE) {
    const int count = min(TILE, steps - start);
    __syncthreads();  // the tile before is no longer read
    for (int n = lane; n < count * key_dim; n += blockDim.x) {
      const long long row = (first_step + start + n / key_dim) * heads + head;
      q_tile[n] = q[row * key_dim + n % key_dim];
      k_tile[n] = k[row * key_dim + n % key_dim];
    }
    __syncthreads();
    if (j < value_dim) {
      for (int t = 0; t < count; ++t) {
        const long long at = ((first_step + start + t) * heads + head) * value_dim + j;
        const float value = v[at], decay = gate[at];
        float sum = 0;
        for (int i = 0; i < key_dim; ++i) {
          const float next = decay * state[i * blockDim.x + lane] + k_tile[t * key_dim + i] * value;
          state[i * blockDim.x + lane] = next;
          sum += q_tile[t * key_dim + i] * next;
        }
        y[at] = kept[at] = sum;
      }
    }
  }
}
"""
TILE = 8
look, recur = Kernel(SOURCE, "look"), Kernel(SOURCE, "recur")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        key = q.data_ptr(), q.shape, v.shape
        if key not in self.kept:
            inputs = q.new_full((2 * (q.numel() + v.numel()),), torch.nan)
            other = torch.zeros(1, dtype=torch.int32, device=q.device)
            self.kept[key] = inputs, torch.empty_like(v), other
        inputs, output, other = self.kept[key]
        other.zero_()
        look(q, k, v, gate, inputs, q.numel(), v.numel(), other, grid=32, block=256)
        block = min(64, 32 * -(-value_dim // 32))
        recur(
            q, k, v, gate, y, output, other, steps, heads, key_dim, value_dim,
            grid=(batch * heads, -(-value_dim // block)), block=block,
            shared=4 * key_dim * (2 * TILE + block),
        )  # fmt: skip
        return y
