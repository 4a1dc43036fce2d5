"""Raises an error that cannot be asked what it says."""

import torch
import torch.nn as nn

EXPECT = "crash"
SAYS = ("Odd: (no text: its __str__ raises RuntimeError)",)
LINE = 18


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Odd
