"""The output is read before the state takes in the present step: late by one."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        outputs = []
        for t in range(q.shape[1]):
            outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
            outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            state = gate[:, t].unsqueeze(-2) * state + outer
        return torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
