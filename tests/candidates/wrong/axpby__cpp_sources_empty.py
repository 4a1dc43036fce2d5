"""`functions` names a function that no source defines: `cpp_sources` is empty."""

import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

EXPECT = "compile_error"
SAYS = ("must declare each of them",)

extension = load_inline(
    name="kernelproof_fixture_empty_sources", cpp_sources="", functions=["axpby"]
)


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int) -> torch.Tensor:
        return extension.axpby(x, z, alpha, beta, valid)
