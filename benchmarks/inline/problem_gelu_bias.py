"""GELU of a sum with a bias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return torch.nn.functional.gelu(x + self.bias)


def get_inputs(rows=37):
    return [torch.randn(rows, 96)]


CASES = {"default": {}, "one": {"rows": 1}}
