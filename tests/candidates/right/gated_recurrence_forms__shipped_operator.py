"""The shipped operator as a model would call it, with its gradients."""

import torch.nn as nn

from kernelproof.ops.gated_recurrence import gated_recurrence

EXPECT = "pass"
ONLY = ("everything", "log_gates", "packed", "bf16")


class ModelNew(nn.Module):
    def __init__(
        self, gates="k", log_gates=False, scale=1.0, initial=False, returned=False, packed=False
    ):
        super().__init__()
        names = {"k": "gate_k", "v": "gate_v", "h": "gate_head"}
        self.names = [names[letter] for letter in gates]
        self.names += ["initial_state"] * initial + ["cu_seqlens"] * packed
        self.options = {"log_gates": log_gates, "scale": scale, "return_state": returned}

    def forward(self, q, k, v, *rest):
        return gated_recurrence(q, k, v, **dict(zip(self.names, rest, strict=True)), **self.options)
