"""Decay by logarithms of the gates: NaN as soon as a gate is negative or zero."""

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def forward(self, q, k, v, gate):
        log_gate = gate.float().log().cumsum(dim=1)
        state = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
        outputs = []
        for t in range(q.shape[1]):
            decay = log_gate[:, t] if t == 0 else log_gate[:, t] - log_gate[:, t - 1]
            outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            state = decay.exp().unsqueeze(-2) * state + outer
            outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
        return torch.stack(outputs, dim=1).to(q.dtype) if outputs else torch.zeros_like(v)
