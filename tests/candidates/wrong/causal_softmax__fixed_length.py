"""The mask is built once for the default length, and the kernel knows no other."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        visible = torch.ones(50, 50, dtype=torch.bool, device=scores.device).tril()
        p = torch.zeros_like(scores)
        rows, columns = min(queries, 50), min(keys, 50)
        part = (scores[:, :rows, :columns] * self.scale).masked_fill(
            ~visible[:rows, :columns], float("-inf")
        )
        p[:, :rows, :columns] = torch.softmax(part, dim=-1)
        return p
