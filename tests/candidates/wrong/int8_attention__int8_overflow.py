"""Scores added up in int8, which wraps around."""

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
        q = q_q.transpose(1, 2)
        k, v = (x.transpose(1, 2).repeat_interleave(groups, dim=1) for x in (k_q, v_q))
        scores = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.int8, device=q.device)
        for d in range(q.shape[-1]):
            scores += q[..., d].unsqueeze(-1) * k[..., d].unsqueeze(-2)
        factor = q_scale * k_scale.repeat_interleave(groups) / math.sqrt(q.shape[-1])
        scores = scores.float() * factor.view(1, -1, 1, 1)
        v = v.float() * v_scale.repeat_interleave(groups).view(1, -1, 1, 1)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        later = later.triu(k.shape[2] - q.shape[2] + 1) if self.causal else later & False
        p = torch.softmax(scores.masked_fill(later, -math.inf), dim=-1)
        p = p.masked_fill(later, 0.0)  # a query that sees no key gives zeros
        return (p @ v).transpose(1, 2).contiguous()
