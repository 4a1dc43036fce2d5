"""The right number, but of shape (1,) instead of ()."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, target).reshape(1)
