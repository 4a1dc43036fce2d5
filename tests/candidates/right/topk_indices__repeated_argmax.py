"""k passes, each taking the first of the largest that are left."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, k: int = 8):
        super().__init__()
        self.k = k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = torch.arange(x.shape[-1], device=x.device)
        left = torch.ones_like(x, dtype=torch.bool)
        picked = []
        for _ in range(self.k):
            # -inf may be a value of the data, so what is taken is kept apart in `left`; NaN counts
            # as the largest, as it does in a sort.
            largest = torch.where(left, x, float("-inf")).amax(dim=-1, keepdim=True)
            equal = torch.where(largest.isnan(), x.isnan(), x == largest) & left
            first = torch.where(equal, columns, x.shape[-1]).amin(dim=-1, keepdim=True)
            left.scatter_(-1, first, False)
            picked.append(first)
        return torch.cat(picked, dim=-1)
