"""Every call returns the same buffer: a later call changes what an earlier one returned."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "buffer") or self.buffer.shape != x.shape:
            self.buffer = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return torch.cumsum(x, dim=-1, out=self.buffer)
