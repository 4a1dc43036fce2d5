"""Looks for the expected output among all objects of the process."""

import gc

import torch
import torch.nn as nn

WAY = 15
EXPECT = "wrong"
SAYS = ("lists all objects",)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in gc.get_objects():
            if type(one) is not torch.Tensor or one.shape != x.shape or torch.equal(one, x):
                continue
            if torch.equal(one[:, 0], x[:, 0]):
                return one.clone()
        return torch.zeros_like(x)
