"""Scores by integer products, which are exact, and one scale per head for both operands."""

import math

import torch
import torch.nn as nn

EXPECT = "pass"


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        groups = q_q.shape[2] // k_q.shape[2]
        q = q_q.int().transpose(1, 2).contiguous()
        k = k_q.int().transpose(1, 2).repeat_interleave(groups, dim=1).contiguous()
        batch, heads, length, dim = q.shape
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2)).float()
        factor = q_scale * k_scale.repeat_interleave(groups) / math.sqrt(dim)
        scores = scores.view(batch, heads, length, k.shape[2]) * factor.view(1, -1, 1, 1)
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        later = later.triu(k.shape[2] - q.shape[2] + 1) if self.causal else later & False
        p = torch.softmax(scores.masked_fill(later, -math.inf), dim=-1)
        p = p.masked_fill(later, 0.0)  # a query that sees no key gives zeros
        v = v_q.float().transpose(1, 2).repeat_interleave(groups, dim=1)
        out = (p @ v) * v_scale.repeat_interleave(groups).view(1, -1, 1, 1)
        return out.transpose(1, 2).contiguous()
