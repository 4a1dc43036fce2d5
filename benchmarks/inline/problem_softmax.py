"""Softmax of rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs(rows=6, columns=300):
    return [torch.randn(rows, columns)]


CASES = {"default": {}, "narrow": {"rows": 2, "columns": 5}}
