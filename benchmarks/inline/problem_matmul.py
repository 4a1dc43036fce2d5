"""A product of matrices."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs(m=40, k=72, n=56):
    return [torch.randn(m, k), torch.randn(k, n)]


CASES = {"default": {}, "odd": {"m": 17, "k": 33, "n": 15}}
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
