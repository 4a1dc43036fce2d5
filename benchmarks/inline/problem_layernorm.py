"""Layer norm, in single and half precision."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width=200):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        w, b = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)


def get_inputs(rows=5, dtype=torch.float32):
    return [torch.randn(rows, 200).to(dtype)]


CASES = {"default": {}, "fp16": {"dtype": torch.float16}, "bf16": {"dtype": torch.bfloat16}}
