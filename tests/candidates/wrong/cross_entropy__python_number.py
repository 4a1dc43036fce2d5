"""A Python float where a tensor was asked for."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> float:
        return F.cross_entropy(logits, target).item()
