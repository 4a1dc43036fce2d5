"""The mask is applied after the softmax: the rows that remain do not sum to one."""

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
        q = (q_q.float() * q_scale.view(1, 1, -1, 1)).transpose(1, 2)
        k, v = (
            (x.float() * s.view(1, 1, -1, 1)).transpose(1, 2).repeat_interleave(groups, dim=1)
            for x, s in ((k_q, k_scale), (v_q, v_scale))
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        later = later.triu(k.shape[2] - q.shape[2] + 1) if self.causal else later & False
        p = torch.softmax(scores, dim=-1).masked_fill(later, 0.0)
        return (p @ v).transpose(1, 2).contiguous()
