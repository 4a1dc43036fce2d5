"""Takes the mask for a length: the kept tokens are thought to come first."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        length = mask.sum(dim=1, keepdim=True)
        kept = torch.arange(x.shape[1], device=x.device) < length
        return x.masked_fill(~kept.unsqueeze(-1), 0).sum(dim=1) / length.clamp(min=1)
