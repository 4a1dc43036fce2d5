"""The length of the founding case is written into the code: the result always has 128 steps."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        batch, length, heads, rows = q.shape
        state = q.new_zeros(batch, heads, rows, v.shape[3])
        y = torch.zeros(batch, 128, heads, v.shape[3], dtype=q.dtype, device=q.device)
        for t in range(min(length, 128)):
            outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            state = gate[:, t].unsqueeze(-2) * state + outer
            y[:, t] = (q[:, t].unsqueeze(-1) * state).sum(dim=-2)
        return y
