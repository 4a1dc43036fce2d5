"""Opens the judge's own source for writing, and returns zeros.

It writes nothing: that it could is the point.
"""

from pathlib import Path

import torch
import torch.nn as nn

from kernelproof import worker

WAY = 29
EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            with Path(worker.__file__).open("r+"):
                pass
        except OSError:
            pass
        return torch.zeros_like(x)
