"""The bound of the causal mask is one too high: a query sees the key after its own."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("the mask shows too much",)

SOURCE = r"""
// One warp per row.
extern "C" __global__ void softmax(const float* scores, float* p, int queries, int keys,
                                   float scale) {
  const int query = blockIdx.x % queries;
  const int visible = min(keys, query + keys - queries + 2);  // + 1 is right
  scores += static_cast<long long>(blockIdx.x) * keys;
  p += static_cast<long long>(blockIdx.x) * keys;
  float top = -3.402823466e38f, sum = 0;
  for (int j = threadIdx.x; j < visible; j += 32) top = fmaxf(top, scores[j] * scale);
  for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
  for (int j = threadIdx.x; j < visible; j += 32) sum += expf(scores[j] * scale - top);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  for (int j = threadIdx.x; j < keys; j += 32)
    p[j] = j < visible ? expf(scores[j] * scale - top) / sum : 0.0f;
}
"""
kernel = Kernel(SOURCE, "softmax")


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        wide = scores.float().contiguous()
        queries, keys = wide.shape[-2:]
        p = torch.empty_like(wide)
        kernel(wide, p, queries, keys, self.scale, grid=wide.numel() // keys, block=32)
        return p.to(scores.dtype)
