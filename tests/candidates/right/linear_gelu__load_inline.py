"""C++ with PyTorch's headers, compiled at import as in KernelBench."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "pass"

SOURCE = r"""
#include <cmath>

// x (B, I), weight (O, I), bias (O): contiguous fp32.
torch::Tensor linear_gelu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
  const int64_t B = x.size(0), I = x.size(1), O = weight.size(0);
  auto y = torch::empty({B, O}, x.options());
  const float *px = x.data_ptr<float>(), *pw = weight.data_ptr<float>();
  const float* pb = bias.data_ptr<float>();
  float* py = y.data_ptr<float>();
  at::parallel_for(0, B, 8, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      for (int64_t o = 0; o < O; ++o) {
        float lanes[8] = {0};  // eight partial sums: vectorised, and a shorter error chain
        int64_t i = 0;
        for (; i + 8 <= I; i += 8)
          for (int64_t l = 0; l < 8; ++l) lanes[l] += px[b * I + i + l] * pw[o * I + i + l];
        float z = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
                  ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
        for (; i < I; ++i) z += px[b * I + i] * pw[o * I + i];
        z += pb[o];
        py[b * O + o] = 0.5f * z * std::erfc(-z * 0.70710678f);
      }
    }
  });
  return y;
}
"""

extension = load_inline(
    name="kernelproof_fixture_linear_gelu",
    cpp_sources=SOURCE,
    functions=["linear_gelu"],
    extra_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        plain = [t.detach().float().contiguous() for t in (x, self.weight, self.bias)]
        return extension.linear_gelu(*plain).to(x.dtype)
