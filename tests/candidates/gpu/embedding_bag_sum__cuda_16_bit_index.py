"""Indices are staged in shared memory as 16-bit numbers: rows from 65536 on become others."""

import torch.nn as nn

from kernelproof.cuda import Kernel

EXPECT = "wrong"
SAYS = ("case many_entries",)

SOURCE = r"""
// One block per bag.
extern "C" __global__ void sum_bags(const float* table, const long long* indices,
                                    const long long* offsets, float* y, int bags, int total,
                                    int dim) {
  __shared__ unsigned short staged[64];
  const int bag = blockIdx.x;
  const long long first = offsets[bag], last = bag + 1 < bags ? offsets[bag + 1] : total;
  for (int d0 = 0; d0 < dim; d0 += blockDim.x) {
    const int d = d0 + threadIdx.x;
    float sum = 0;
    for (long long start = first; start < last; start += 64) {
      __syncthreads();
      const long long mine = start + threadIdx.x;
      if (mine < last) staged[threadIdx.x] = static_cast<unsigned short>(indices[mine]);
      __syncthreads();
      const int count = static_cast<int>(min(64ll, last - start));
      if (d < dim)
        for (int n = 0; n < count; ++n) sum += table[static_cast<long long>(staged[n]) * dim + d];
    }
    if (d < dim) y[static_cast<long long>(bag) * dim + d] = sum;
  }
}
"""
kernel = Kernel(SOURCE, "sum_bags")


class ModelNew(nn.Module):
    def forward(self, table, indices, offsets):
        wide, indices, offsets = table.float().contiguous(), indices.contiguous(), offsets
        bags, dim = offsets.numel(), wide.shape[1]
        y = wide.new_empty(bags, dim)
        kernel(
            wide, indices, offsets.contiguous(), y, bags, indices.numel(), dim,
            grid=bags, block=64,
        )  # fmt: skip
        return y.to(table.dtype)
