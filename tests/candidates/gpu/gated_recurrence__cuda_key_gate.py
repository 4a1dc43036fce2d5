"""The gate scales the rows of the state (the key axis) instead of its columns."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("the gate acts on the key axis",)

SOURCE = r"""
extern "C" __global__ void recur(const float* q, const float* k, const float* v, const float* gate,
                                 float* y, int steps, int heads, int key_dim, int value_dim) {
  extern __shared__ float state[];  // (key_dim, value_dim); a thread owns a column
  const int head = blockIdx.x % heads, j = threadIdx.x;
  const long long first_step = static_cast<long long>(blockIdx.x / heads) * steps;
  for (int i = 0; i < key_dim; ++i) state[i * value_dim + j] = 0;
  for (int t = 0; t < steps; ++t) {
    const long long row = (first_step + t) * heads + head;
    const float value = v[row * value_dim + j];
    float sum = 0;
    for (int i = 0; i < key_dim; ++i) {
      const float decay = i < value_dim ? gate[row * value_dim + i] : 1.0f;
      float& cell = state[i * value_dim + j];
      cell = decay * cell + k[row * key_dim + i] * value;
      sum += q[row * key_dim + i] * cell;
    }
    y[row * value_dim + j] = sum;
  }
}
"""
kernel = Kernel(SOURCE, "recur")


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        q, k, v, gate = q.contiguous(), k.contiguous(), v.contiguous(), gate.contiguous()
        batch, steps, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        y = torch.empty_like(v)
        if y.numel() == 0:
            return y
        kernel(
            q, k, v, gate, y, steps, heads, key_dim, value_dim,
            grid=batch * heads, block=value_dim, shared=4 * key_dim * value_dim,
        )  # fmt: skip
        return y
