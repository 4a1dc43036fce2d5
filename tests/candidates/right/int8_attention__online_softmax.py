"""One pass over blocks of keys with a running maximum; the scales folded into one factor."""

EXPECT = "pass"

import math

import torch
import torch.nn as nn

BLOCK = 20  # divides neither the founding length nor powers of two


class ModelNew(nn.Module):
    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        q, k, v = (x.float().transpose(1, 2) for x in (q_q, k_q, v_q))
        factor = (q_scale * k_scale / math.sqrt(q.shape[-1])).view(1, -1, 1, 1)
        length = q.shape[2]
        query = torch.arange(length, device=q.device).unsqueeze(1)
        top = q.new_full((*q.shape[:3], 1), -math.inf)
        total = torch.zeros_like(top)
        out = torch.zeros_like(v)
        for start in range(0, length, BLOCK):
            keys = slice(start, start + BLOCK)
            scores = (q @ k[:, :, keys].transpose(-1, -2)) * factor
            key = torch.arange(start, min(start + BLOCK, length), device=q.device)
            scores = scores.masked_fill(key > query, -math.inf)
            new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            # Every row sees key 0, so that the maximum is finite from the first block on.
            p = torch.exp(scores - new_top)
            shrink = torch.exp(top - new_top)
            total = total * shrink + p.sum(dim=-1, keepdim=True)
            out = out * shrink + p @ v[:, :, keys]
            top = new_top
        out = out / total * v_scale.view(1, -1, 1, 1)
        return out.transpose(1, 2).contiguous()
