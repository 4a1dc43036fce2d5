"""The gate on the key axis, state[i, j] = gate[i] * state[i, j] + k[i] * v[j].

This is the usual gated linear attention, and another function: here the gate is on the value axis.
"""

import torch
import torch.nn as nn

EXPECT = "wrong"
SAYS = ("the gate acts on the key axis",)


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        outputs = []
        for t in range(q.shape[1]):
            outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            state = gate[:, t].unsqueeze(-1) * state + outer
            outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
        return torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)
