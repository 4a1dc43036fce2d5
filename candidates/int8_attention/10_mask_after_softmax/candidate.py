"""The slip: the mask is applied after the softmax."""

import math

import torch
import torch.nn as nn

EXPECT = "wrong"


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        groups = q_q.shape[2] // k_q.shape[2]
        q, k, v = (
            (x.float() * scale.view(1, 1, -1, 1)).transpose(1, 2)
            for x, scale in ((q_q, q_scale), (k_q, k_scale), (v_q, v_scale))
        )
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        queries, keys = q.shape[2], k.shape[2]
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = torch.zeros(queries, keys, dtype=torch.bool, device=q.device)
        if self.causal:
            hidden = ~hidden
            hidden = hidden.triu(keys - queries + 1)
        weights = torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0)
        return (weights @ v).transpose(1, 2).contiguous()
