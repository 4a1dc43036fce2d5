"""The values are not scaled back: each head is off by a factor of its own."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("depends on axis 2 only",)

SOURCE = r"""
// One thread per query.
extern "C" __global__ void attend(const signed char* q, const signed char* k, const signed char* v,
                                  const float* q_scale, const float* k_scale, float* out, int rows,
                                  int queries, int keys, int heads, int kv_heads, int dim,
                                  int causal) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const int h = row % heads, t = row / heads % queries, b = row / heads / queries;
  const int g = h * kv_heads / heads;
  const int visible = causal ? keys - queries + t + 1 : keys;
  const float scale = q_scale[h] * k_scale[g] / sqrtf(static_cast<float>(dim));
  q += static_cast<long long>(row) * dim;
  out += static_cast<long long>(row) * dim;
  for (int d = 0; d < dim; ++d) out[d] = 0;
  float top = -3.402823466e38f, sum = 0;
  for (int s = 0; s < visible; ++s) {
    const long long at = (static_cast<long long>(b * keys + s) * kv_heads + g) * dim;
    int dot = 0;
    for (int d = 0; d < dim; ++d) dot += q[d] * k[at + d];
    const float score = dot * scale, higher = fmaxf(top, score);
    const float keep = expf(top - higher), weight = expf(score - higher);
    sum = sum * keep + weight;
    for (int d = 0; d < dim; ++d) out[d] = out[d] * keep + weight * v[at + d];
    top = higher;
  }
  for (int d = 0; d < dim; ++d) out[d] = visible > 0 ? out[d] / sum : 0.0f;
}
"""
kernel = Kernel(SOURCE, "attend")


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        q, k, v = q_q.contiguous(), k_q.contiguous(), v_q.contiguous()
        batch, queries, heads, dim = q.shape
        keys, kv_heads = k.shape[1:3]
        out = torch.empty(q.shape, dtype=q_scale.dtype, device=q.device)
        rows = batch * queries * heads
        if out.numel():
            kernel(
                q, k, v, q_scale, k_scale, out, rows, queries, keys, heads, kv_heads, dim,
                int(self.causal), grid=-(-rows // 64), block=64,
            )  # fmt: skip
        return out
