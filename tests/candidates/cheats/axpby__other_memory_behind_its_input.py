"""Puts zeros behind its first input and leaves the memory that was there alone."""

import torch
import torch.nn as nn

WAY = 2
EXPECT = "wrong"
SAYS = ("input [0] was changed by the call",)


class ModelNew(nn.Module):
    def forward(
        self, x: torch.Tensor, z: torch.Tensor, alpha: float, beta: float, valid: int
    ) -> torch.Tensor:
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        if x.is_contiguous():
            # Of the same shape and strides.
            x.data = torch.zeros_like(x)
        return y
