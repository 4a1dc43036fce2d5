"""Rows come from a Python generator, in float64."""

from collections.abc import Iterator

import torch
import torch.nn as nn

EXPECT = "pass"


def rows(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for row in x:
        yield torch.cumsum(row.double(), dim=-1).float()


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack(list(rows(x)))
