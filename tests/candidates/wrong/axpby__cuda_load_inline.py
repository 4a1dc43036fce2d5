"""`load_inline` with CUDA sources, and the declaration in `cpp_sources` forgotten.

Without a CUDA build of PyTorch this cannot be compiled at all; with one, the generated binding does
not know the function. Either way it is a compile error, and a message has to say which.
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "compile_error"
SAYS = ("must declare each of them", "torch::Tensor axpby(torch::Tensor x")

SOURCE = r"""
#include <torch/extension.h>

__global__ void scale_kernel(const float* x, const float* z, float* y, float alpha, float beta,
                             int columns, int valid) {
  const long long at = (long long)blockIdx.x * columns;
  for (int c = threadIdx.x; c < columns; c += blockDim.x)
    y[at + c] = c < valid ? alpha * x[at + c] + beta * z[at + c] : x[at + c];
}

torch::Tensor axpby(torch::Tensor x, torch::Tensor z, double alpha, double beta, int64_t valid) {
  auto y = torch::empty_like(x);
  scale_kernel<<<x.size(0), 128>>>(x.data_ptr<float>(), z.data_ptr<float>(), y.data_ptr<float>(),
                                   alpha, beta, x.size(1), valid);
  return y;
}
"""

extension = load_inline(
    name="kernelproof_fixture_axpby_cuda",
    cpp_sources="",
    cuda_sources=SOURCE,
    functions=["axpby"],
)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        y = extension.axpby(x.float().contiguous(), z.float().contiguous(), alpha, beta, valid)
        return y.to(x.dtype)
