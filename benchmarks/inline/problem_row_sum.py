"""Sums of rows."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=1)


def get_inputs(rows=9, columns=500):
    return [torch.randn(rows, columns)]


CASES = {"default": {}, "narrow": {"rows": 3, "columns": 7}}
