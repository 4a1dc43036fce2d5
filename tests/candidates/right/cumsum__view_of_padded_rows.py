"""The output is a view of a larger buffer, with an offset and gaps that nobody has written."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.empty(x.shape[0], x.shape[1] + 5, dtype=x.dtype)
        padded[:, 3:-2] = torch.cumsum(x.double(), dim=-1)
        return padded[:, 3:-2]
