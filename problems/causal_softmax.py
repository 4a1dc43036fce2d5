"""Softmax of attention scores under a causal mask.

    p[b, i, j] = softmax_j(scores[b, i, j] * scale)  over  j <= i + (T - S),   0 elsewhere

``scores`` is (B, S, T) with T >= S: the S queries are the last ones, so the first query sees
T - S + 1 keys. The reference masks with the most negative number of the dtype, as many models do.

Traps for kernel writers:

- Off by one: query i sees key i + (T - S). With T = S the diagonal is visible.
- Masking after the softmax leaves rows that do not sum to 1.
- The most negative number times ``scale`` overflows when ``scale`` is above 1: scale first, then
  mask.
- What is masked may be larger than all that is visible (the case ``huge_future``): with a maximum
  taken before the mask every visible term vanishes.
- The masked part has to be written (zeros), not skipped.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, scale: float = 1.25):
        super().__init__()
        self.scale = scale

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        visible = torch.ones(queries, keys, dtype=torch.bool, device=scores.device)
        visible = visible.tril(diagonal=keys - queries)
        scores = scores * self.scale
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, dim=-1)


def get_inputs(batch=4, queries=50, keys=50, scale=1.25, dtype=torch.float32, future=None):
    """``future``: what the masked scores hold, random like the others when None."""
    scores = 2 * torch.randn(batch, queries, keys)
    if future is not None:
        visible = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        scores = scores.masked_fill(~visible, future)
    return [scores.to(dtype)]


def get_init_inputs(scale=1.25):
    return [scale]


CASES = {
    "default": {},
    "one": {"batch": 3, "queries": 1, "keys": 1},
    "decode": {"batch": 5, "queries": 1, "keys": 77},
    "prefix": {"batch": 2, "queries": 17, "keys": 33},
    "two_keys": {"batch": 9, "queries": 2, "keys": 2},
    "two_of_five": {"batch": 3, "queries": 2, "keys": 5},
    "huge_future": {"batch": 2, "queries": 13, "keys": 21, "future": 1e30},
    "odd": {"batch": 3, "queries": 65, "keys": 65, "scale": 0.125},
    "large": {"batch": 2, "queries": 300, "keys": 513},
    "bf16": {"dtype": torch.bfloat16},
}


class InfinityMask(Model):
    """The same with an additive mask of -inf."""

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        queries, keys = scores.shape[-2:]
        mask = torch.full_like(scores[0], float("-inf")).triu(keys - queries + 1)
        return torch.softmax(torch.add(mask, scores, alpha=self.scale), dim=-1)


BASELINES = {"additive -inf mask": InfinityMask}


def FLOPS(batch=4, queries=50, keys=50, scale=1.25, dtype=torch.float32):
    visible = queries * keys - queries * (queries - 1) // 2
    return 5 * batch * visible


def BYTES(batch=4, queries=50, keys=50, scale=1.25, dtype=torch.float32):
    # What is masked need not be read, but is written.
    visible = queries * keys - queries * (queries - 1) // 2
    return batch * (visible + queries * keys) * dtype.itemsize
