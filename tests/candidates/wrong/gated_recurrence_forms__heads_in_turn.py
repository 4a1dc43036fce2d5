"""Heads of v take the heads of q and k in turn; a run of neighbours belongs to each."""

import torch.nn as nn

from kernelproof.ops.gated_recurrence import gated_recurrence

EXPECT = "wrong"
ONLY = ("everything",)


class ModelNew(nn.Module):
    def __init__(self, gates, log_gates, scale, initial, returned, packed):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v, gate_k, gate_v, gate_head, state):
        times = v.shape[2] // q.shape[2]
        return gated_recurrence(
            q.repeat(1, 1, times, 1),
            k.repeat(1, 1, times, 1),
            v,
            gate_k=gate_k,
            gate_v=gate_v,
            gate_head=gate_head,
            scale=self.scale,
            initial_state=state,
            return_state=True,
        )
