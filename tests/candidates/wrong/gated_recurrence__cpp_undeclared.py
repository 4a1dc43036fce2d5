"""C++ that does not compile: an undeclared identifier.

`LINE` is the line of this file (not of the C++ text alone) at which the mistake is.
"""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "compile_error"
LINE = 20

SOURCE = r"""
torch::Tensor gated_recurrence(torch::Tensor q, torch::Tensor k, torch::Tensor v,
                               torch::Tensor gate) {
  auto state = torch::zeros({q.size(0), q.size(2), q.size(3), v.size(3)}, q.options());
  auto y = torch::empty_like(v);
  for (int64_t t = 0; t < q.size(1); ++t) {
    auto outer = k.select(1, t).unsqueeze(-1) * v.select(1, t).unsqueeze(-2);
    state = gate_now.unsqueeze(-2) * state + outer;  // the mistake: LINE
    y.select(1, t).copy_((q.select(1, t).unsqueeze(-1) * state).sum(-2));
  }
  return y;
}
"""

extension = load_inline(
    name="kernelproof_fixture_undeclared", cpp_sources=SOURCE, functions=["gated_recurrence"]
)


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate) -> torch.Tensor:
        return extension.gated_recurrence(q, k, v, gate)
