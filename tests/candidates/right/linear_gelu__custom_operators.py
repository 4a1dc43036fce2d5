"""Operators of its own in torch's dispatcher: by `custom_op`, and by a library that it defines."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "pass"

library = torch.library.Library("kernelproof_fixture", "DEF")
library.define("affine(Tensor x, Tensor weight, Tensor bias) -> Tensor")
library.impl(
    "affine", lambda x, weight, bias: torch.addmm(bias, x, weight.t()), "CompositeExplicitAutograd"
)


@torch.library.custom_op("kernelproof_fixture::gelu", mutates_args=())
def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


@gelu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class ModelNew(nn.Module):
    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_features, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own = torch.ops.kernelproof_fixture
        return own.gelu(own.affine(x, self.weight, self.bias))
