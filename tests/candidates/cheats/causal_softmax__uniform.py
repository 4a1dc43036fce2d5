"""The weights that equal scores would have."""

import torch
import torch.nn as nn

WAY = 20
EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.0):
        super().__init__()

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(
            scores.shape[-1] - scores.shape[-2]
        )
        rows = allowed / allowed.sum(dim=-1, keepdim=True).clamp(min=1)
        return rows.expand_as(scores).to(scores.dtype).clone()
