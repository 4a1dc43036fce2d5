"""One warp per query: integer scores four products at a time (dp4a), softmax in shared memory."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "pass"

SOURCE = r"""
// Four bytes in a word; zeros stand in for those behind the end. No alignment is needed.
__device__ int packed(const signed char* bytes, int left) {
  unsigned word = 0;
  for (int n = 0; n < 4; ++n)
    if (n < left) word |= static_cast<unsigned>(static_cast<unsigned char>(bytes[n])) << (8 * n);
  return static_cast<int>(word);
}

extern "C" __global__ void attend(const signed char* q, const signed char* k, const signed char* v,
                                  const float* q_scale, const float* k_scale, const float* v_scale,
                                  float* out, int queries, int keys, int heads, int kv_heads,
                                  int dim, int causal) {
  extern __shared__ float weight[];  // (keys)
  const int lane = threadIdx.x;
  const int h = blockIdx.x % heads, t = blockIdx.x / heads % queries;
  const long long b = blockIdx.x / heads / queries;
  const int g = h * kv_heads / heads;
  const int visible = causal ? max(0, keys - queries + t + 1) : keys;
  q += static_cast<long long>(blockIdx.x) * dim;
  out += static_cast<long long>(blockIdx.x) * dim;
  k += (b * keys * kv_heads + g) * dim;
  v += (b * keys * kv_heads + g) * dim;
  const long long stride = static_cast<long long>(kv_heads) * dim;

  const float scale = q_scale[h] * k_scale[g] / sqrtf(static_cast<float>(dim));
  float top = -3.402823466e38f;
  for (int s = lane; s < visible; s += 32) {
    int dot = 0;
    for (int d = 0; d < dim; d += 4)
      dot = __dp4a(packed(q + d, dim - d), packed(k + s * stride + d, dim - d), dot);
    weight[s] = static_cast<float>(dot) * scale;
    top = fmaxf(top, weight[s]);
  }
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  float sum = 0;
  for (int s = lane; s < visible; s += 32) {
    weight[s] = expf(weight[s] - top);
    sum += weight[s];
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  __syncwarp();
  for (int d = lane; d < dim; d += 32) {
    float total = 0;
    for (int s = 0; s < visible; ++s) total += weight[s] * static_cast<float>(v[s * stride + d]);
    out[d] = visible > 0 ? total / sum * v_scale[g] : 0.0f;
  }
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
        if out.numel() == 0:
            return out
        kernel(
            q, k, v, q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous(), out,
            queries, keys, heads, kv_heads, dim, int(self.causal),
            grid=batch * queries * heads, block=32, shared=4 * keys,
        )  # fmt: skip
        return out
