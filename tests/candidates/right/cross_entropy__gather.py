"""Only the kept rows, their losses added in fp64."""

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        kept = target != -100
        rows, classes = logits[kept], target[kept]
        top = rows.amax(dim=1, keepdim=True)
        lse = (rows - top).exp().sum(dim=1).log()
        picked = (rows - top).gather(1, classes.unsqueeze(1)).squeeze(1)
        return (lse - picked).double().mean().to(logits.dtype)
