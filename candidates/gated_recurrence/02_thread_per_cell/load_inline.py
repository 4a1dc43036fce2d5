"""The same kernel through load_inline."""

from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

DECLARATION = (
    "torch::Tensor launch(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor g);"
)

HOST = r"""
#include <torch/extension.h>
#include <algorithm>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

torch::Tensor launch(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor g) {
  const int batch = q.size(0), steps = q.size(1), heads = q.size(2), key_dim = q.size(3);
  const int value_dim = v.size(3), width = std::max(1, std::min(value_dim, 1024 / key_dim));
  torch::Tensor y = torch::empty_like(v);
  const dim3 grid(batch * heads, (value_dim + width - 1) / width), block(width, key_dim);
  recur<<<grid, block, 4 * key_dim * width, c10::cuda::getCurrentCUDAStream()>>>(
      q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), g.data_ptr<float>(),
      y.data_ptr<float>(), steps, heads, key_dim, value_dim);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""

extension = load_inline(
    name="ladder_gated_recurrence_thread_per_cell",
    cpp_sources=DECLARATION,
    cuda_sources=Path(__file__).with_name("kernel.cu").read_text() + HOST,
    functions=["launch"],
)


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        if v.numel() == 0:
            return torch.empty_like(v)
        return extension.launch(*(x.contiguous() for x in (q, k, v, gate)))
