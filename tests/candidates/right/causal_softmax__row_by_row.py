"""Each query over the keys that it sees; the masked part is never read."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        p = torch.zeros_like(scores)
        for i in range(queries):
            visible = i + keys - queries + 1
            row = scores[:, i, :visible] * self.scale
            p[:, i, :visible] = torch.softmax(row.float(), dim=-1).to(scores.dtype)
        return p
