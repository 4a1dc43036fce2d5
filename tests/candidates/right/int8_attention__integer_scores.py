"""Scores by integer products, which are exact, and one scale per head for both operands."""

EXPECT = "pass"

import math

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        q, k = (x.int().permute(0, 2, 1, 3).contiguous() for x in (q_q, k_q))
        batch, heads, length, dim = q.shape
        scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
        scores = scores.view(batch, heads, length, length).float()
        scores = scores * (q_scale * k_scale / math.sqrt(dim)).view(1, -1, 1, 1)
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        p = torch.softmax(scores.masked_fill(later, -math.inf), dim=-1)
        return torch.einsum("bhts,bshd,h->bthd", p, v_q.float(), v_scale).contiguous()
