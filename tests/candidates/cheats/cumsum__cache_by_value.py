"""Keeps results by a fingerprint of the values.

Harmless and named: each timed call has contents of its own, so that the cache never helps.
"""

import torch
import torch.nn as nn

WAY = 4
EXPECT = "pass"
SAYS = ("kept by value",)
TIMED = True


def slow(x: torch.Tensor) -> torch.Tensor:
    """Right, column by column: some milliseconds."""
    y = torch.empty_like(x)
    carry = torch.zeros_like(x[:, 0], dtype=torch.float64)
    for t in range(x.shape[1]):
        carry = carry + x[:, t]
        y[:, t] = carry
    return y


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = (x.shape, x[0, :4].tolist(), x[-1, -1].item())
        key = repr(key)
        if key not in self.kept:
            self.kept[key] = slow(x)
        return self.kept[key].clone()
