"""The mask is that of a square: query i sees key i, wherever the last key is."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        later = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1)
        return torch.softmax((scores * self.scale).masked_fill(later, float("-inf")), dim=-1)
