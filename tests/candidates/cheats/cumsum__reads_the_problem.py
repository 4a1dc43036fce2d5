"""Reads the problem's file for its baseline, and runs that; without it, the library's operator.

Right, so it passes; what it did is named.
"""

import torch
import torch.nn as nn

from kernelproof import problem

WAY = 40
EXPECT = "pass"
SAYS = ("imports what judges it",)

try:
    names = {}
    exec(problem.find("cumsum").read_text(), names)
    reference = names["Model"]()
    compute = reference.forward
except Exception:
    compute = lambda x: torch.cumsum(x, dim=-1)  # noqa: E731


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return compute(x)
