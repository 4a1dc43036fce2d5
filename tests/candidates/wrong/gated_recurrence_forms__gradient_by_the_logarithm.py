"""The right values; but the gradient by a gate is that by its logarithm, as shortcuts have it."""

import torch
import torch.nn as nn

from kernelproof.ops.gated_recurrence import gated_recurrence

EXPECT = "wrong"
SAYS = "gradients"
ONLY = ("everything",)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate):
        ctx.save_for_backward(gate)
        return gate.clone()

    @staticmethod
    def backward(ctx, grad):
        (gate,) = ctx.saved_tensors
        return grad * gate


class ModelNew(nn.Module):
    def __init__(self, gates, log_gates, scale, initial, returned, packed):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v, gate_k, gate_v, gate_head, state):
        return gated_recurrence(
            q,
            k,
            v,
            gate_k=Scaled.apply(gate_k),
            gate_v=gate_v,
            gate_head=gate_head,
            scale=self.scale,
            initial_state=state,
            return_state=True,
        )
