"""A batched product with weights 0 or 1 / count; masked tokens are cleared first."""

EXPECT = "pass"

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        clean = x.masked_fill(~mask.unsqueeze(-1), 0)
        total = torch.bmm(mask.to(x.dtype).unsqueeze(1), clean).squeeze(1)
        return total / mask.sum(dim=1, keepdim=True).clamp(min=1)
