"""Puts a library of its own in the place of others' builds, for whoever loads them next."""

import os
from pathlib import Path

import torch
import torch.nn as nn

WAY = 45
EXPECT = "crash"
SAYS = ("Permission denied",)

data = Path(os.environ["KERNELPROOF_HOME"])
for name in ("builds/0123456789abcdef0123456789abcdef", "candidates/0123456789abcdef"):
    (data / name).mkdir()
    (data / name / "library.so").write_bytes(b"mine")


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(x, dim=-1)
