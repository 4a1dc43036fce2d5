"""One pass over blocks of keys with a running maximum; the scales folded into one factor."""

import math

import torch
import torch.nn as nn

EXPECT = "pass"

BLOCK = 20  # divides neither the founding length nor powers of two


class ModelNew(nn.Module):
    def __init__(self, causal: bool = True):
        super().__init__()
        self.causal = causal

    def forward(self, q_q, k_q, v_q, q_scale, k_scale, v_scale):
        groups = q_q.shape[2] // k_q.shape[2]
        q = q_q.float().transpose(1, 2)
        k, v = (x.float().transpose(1, 2).repeat_interleave(groups, dim=1) for x in (k_q, v_q))
        factor = q_scale * k_scale.repeat_interleave(groups) / math.sqrt(q.shape[-1])
        length, keys = q.shape[2], k.shape[2]
        # Query number t sees the keys up to and including last[t].
        last = torch.arange(length, device=q.device).unsqueeze(1) + keys - length
        if not self.causal:
            last = torch.full_like(last, keys)
        top = q.new_full((*q.shape[:3], 1), -math.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, keys, BLOCK):
            part = slice(start, min(start + BLOCK, keys))
            scores = (q @ k[:, :, part].transpose(-1, -2)) * factor.view(1, -1, 1, 1)
            later = torch.arange(part.start, part.stop, device=q.device) > last
            scores = scores.masked_fill(later, -math.inf)
            new_top = torch.maximum(top, scores.amax(dim=-1, keepdim=True))
            # A row without a visible key so far has no maximum: any finite number does.
            base = torch.where(new_top == -math.inf, 0.0, new_top)
            p, shrink = torch.exp(scores - base), torch.exp(top - base)
            total = total * shrink + p.sum(dim=-1, keepdim=True)
            out = out * shrink + p @ v[:, :, part]
            top = new_top
        out = out / torch.where(total == 0, 1.0, total)
        out = out * v_scale.repeat_interleave(groups).view(1, -1, 1, 1)
        return out.transpose(1, 2).contiguous()
