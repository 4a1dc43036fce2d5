"""Hillis-Steele scan in fp32: log2(length) passes, each adding what lies 1, 2, 4, ... behind."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        step = 1
        while step < x.shape[-1]:
            shifted = y[..., :-step].clone()
            y[..., step:] += shifted
            step *= 2
        return y
