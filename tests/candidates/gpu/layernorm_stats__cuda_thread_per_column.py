"""One thread per column: a row of more than 1024 columns asks for a block that cannot be."""

import torch
import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "crash"

SOURCE = r"""
extern "C" __global__ void normalise(const float* x, const float* weight, const float* bias,
                                     float* y, float* mean, float* rstd, int columns, float eps) {
  const float* row = x + static_cast<long long>(blockIdx.x) * columns;
  double sum = 0, squares = 0;
  for (int c = 0; c < columns; ++c) sum += row[c];
  const double centre = sum / columns;
  for (int c = 0; c < columns; ++c) squares += (row[c] - centre) * (row[c] - centre);
  const double scale = 1 / sqrt(squares / columns + eps);
  const int c = threadIdx.x;
  y[static_cast<long long>(blockIdx.x) * columns + c] =
      static_cast<float>((row[c] - centre) * scale * weight[c] + bias[c]);
  if (c == 0) {
    mean[blockIdx.x] = static_cast<float>(centre);
    rstd[blockIdx.x] = static_cast<float>(scale);
  }
}
"""
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
            wide, weight.float(), bias.float(), y, mean, rstd, columns, self.eps,
            grid=rows, block=columns,
        )  # fmt: skip
        return {"y": y.to(x.dtype), "mean": mean.to(x.dtype), "rstd": rstd.to(x.dtype)}
