"""Takes batch and queries for one axis, with the stride of the queries: right for contiguous inputs
and for rows with gaps, wrong for slices along the queries."""

import torch
import torch.nn as nn

EXPECT = "wrong"
SAYS = ("[sliced]", "With contiguous inputs the same values come out right")


class ModelNew(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        batch, queries, keys = scores.shape
        if scores.stride(-1) != 1 or not scores.stride(0) or not scores.stride(1):
            scores = scores.contiguous()
        rows = scores.as_strided((batch * queries, keys), (scores.stride(1), 1))
        x = rows.reshape(batch, queries, keys) * self.scale
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return torch.softmax(x.masked_fill(~visible, torch.finfo(x.dtype).min), dim=-1)
