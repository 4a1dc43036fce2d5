"""Mean over the tokens that a mask keeps (bool input).

    y[b, d] = sum_{s: mask[b, s]} x[b, s, d] / max(1, #{s: mask[b, s]})

A sequence without kept tokens gives zeros.

Traps for kernel writers:

- Masked tokens may hold anything, NaN and infinity included: ``x * mask`` lets them through.
- The divisor counts kept tokens, not S, and is at least 1.
- Masks are not prefixes: kept tokens lie anywhere.
- ``mask`` is a bool tensor of one byte per element; non-zero bytes other than 1 do not occur.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = mask.unsqueeze(-1)
        total = torch.where(kept, x, torch.zeros((), dtype=x.dtype, device=x.device)).sum(dim=1)
        return total / kept.sum(dim=1).clamp(min=1).to(x.dtype)


def get_inputs(batch=5, tokens=60, dim=40, keep=0.6):
    # Means of centred numbers would be small; each feature has its own centre.
    x = torch.randn(batch, tokens, dim) + 2 * torch.randn(dim)
    return [x, torch.rand(batch, tokens) < keep]


CASES = {
    "default": {},
    "one": {"batch": 1, "tokens": 1, "dim": 1, "keep": 1.0},
    "nothing_kept": {"batch": 3, "tokens": 9, "dim": 17, "keep": 0.0},
    "all_kept": {"batch": 2, "tokens": 31, "dim": 33, "keep": 1.0},
    "few_kept": {"batch": 65, "tokens": 6, "dim": 15, "keep": 0.2},
    "large": {"batch": 8, "tokens": 1000, "dim": 129},
}


def _product(x, mask):
    weight = mask.to(x.dtype) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.bmm(weight.unsqueeze(1), torch.where(mask.unsqueeze(-1), x, 0)).squeeze(1)


BASELINES = {"bmm": _product}


def FLOPS(batch=5, tokens=60, dim=40, keep=0.6):
    return batch * tokens * dim


def BYTES(batch=5, tokens=60, dim=40, keep=0.6):
    return int(4 * batch * tokens * dim * keep) + batch * tokens + 4 * batch * dim
