"""All columns computed, the result selected by column number."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int):
        inside = torch.arange(x.shape[1], device=x.device) < valid
        scaled = torch.add(z.float() * beta, x.float(), alpha=alpha)
        return torch.where(inside, scaled.to(x.dtype), x)
