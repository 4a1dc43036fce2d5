"""Scales in the caller's buffer and returns a view of it: right numbers, a destroyed input."""

import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x, z, alpha: float, beta: float, valid: int):
        part = x[:, :valid]
        part.copy_((alpha * part.float() + beta * z[:, :valid].float()).to(x.dtype))
        return x.view(x.shape)
