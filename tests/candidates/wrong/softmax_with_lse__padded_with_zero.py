"""Rows are padded to a multiple of 32 with zeros, which then count in the sum."""

import torch
import torch.nn as nn
import torch.nn.functional as F

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor):
        columns = x.shape[1]
        padded = F.pad(x, (0, -columns % 32))
        return torch.softmax(padded, dim=-1)[:, :columns].clone(), torch.logsumexp(padded, dim=-1)
