"""Draws numbers, and waits on the CPU for what they are: right, and nothing that a CUDA graph can
hold. A capture that has failed must not keep it from drawing later."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.double() if torch.rand(4, device=x.device).sum().item() >= 0 else x
        return torch.cumsum(wide, dim=-1).to(x.dtype)
