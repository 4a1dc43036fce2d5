"""Defines the names of the problem and of the judge anew, in the hope that one module is both."""

import torch
import torch.nn as nn

WAY = 26
EXPECT = "wrong"

CASES = {"default": {"rows": 1, "length": 1}}
TOLERANCE = {"atol": 1e9, "rtol": 1e9}


def get_inputs(rows=1, length=1):
    return [torch.zeros(rows, length)]


class Model(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x)
