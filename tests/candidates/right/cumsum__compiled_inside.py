"""`torch.compile` of a part, which is compiled in the first call with each shape."""

import torch
import torch.nn as nn

EXPECT = "pass"
ONLY = ("default",)


@torch.compile(dynamic=True)
def scanned(x: torch.Tensor) -> torch.Tensor:
    return torch.cumsum(x.double(), dim=-1).to(x.dtype)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scanned(x)
