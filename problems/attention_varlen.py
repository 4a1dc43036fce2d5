"""Causal attention over packed sequences of any lengths, with grouped heads.

Sequence n has the queries ``cu_q[n] .. cu_q[n + 1] - 1`` and the keys ``cu_k[n] ..
cu_k[n + 1] - 1``. Its last query sees all of its keys, and each query before it one key less:

    visible(t) = keys - queries + t + 1
    y[t, h]    = softmax_{s < visible(t)}(q[t, h] . k[s, g] / sqrt(D)) @ v[s, g]

with g = h // (Hq / Hkv).
``q`` is (Tq, Hq, D), ``k`` and ``v`` are (Tk, Hkv, D), ``cu_q`` and ``cu_k`` (N + 1,) are int32. A
query that sees no key gives zeros. Softmax and sums are in fp32; the result has the dtype of ``q``.

Traps for kernel writers:

- Sequences without queries, without keys, or without either occur anywhere, first and last too.
- More queries than keys: the first ones see nothing, and 0 / 0 must become 0.
- The causal diagonal ends in the bottom right corner. The top left one is another function, and
  equal where there are as many queries as keys.
- Tiles of keys run past the end of a sequence into the next one: what is read there is finite and
  wrong, so that NaN checks do not show it.
- In grouped heads h // (Hq / Hkv), not h % Hkv.
"""

import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v, cu_q, cu_k):
        group = q.shape[1] // k.shape[1]
        y = torch.zeros_like(q, dtype=torch.float32)
        from_q, from_k = cu_q.tolist(), cu_k.tolist()
        for n in range(len(from_q) - 1):
            own = slice(from_q[n], from_q[n + 1])
            keys = k[from_k[n] : from_k[n + 1]].float().repeat_interleave(group, dim=1)
            values = v[from_k[n] : from_k[n + 1]].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("thd,shd->hts", q[own].float(), keys) / math.sqrt(q.shape[2])
            late = scores.shape[2] - scores.shape[1]
            visible = torch.ones_like(scores[0], dtype=torch.bool).tril(late)
            p = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
            p = p.masked_fill(~visible, 0.0)  # a row that sees no key is NaN before this
            y[own] = torch.einsum("hts,shd->thd", p, values)
        return y.to(q.dtype)


def get_inputs(
    queries=(9, 0, 17, 1),
    keys=(9, 5, 33, 40),
    heads=4,
    kv_heads=2,
    dim=24,
    dtype=torch.float32,
):
    q = torch.randn(sum(queries), heads, dim)
    # A factor of 2 on the keys gives peaked rows: what each query sees then matters.
    k, v = 2 * torch.randn(sum(keys), kv_heads, dim), torch.randn(sum(keys), kv_heads, dim)
    ends = [torch.tensor([0, *n]).cumsum(0).to(torch.int32) for n in (queries, keys)]
    return [*(t.to(dtype) for t in (q, k, v)), *ends]


CASES = {
    "default": {},
    "one_token": {"queries": (1,), "keys": (1,), "heads": 1, "kv_heads": 1, "dim": 3},
    "empty_between": {"queries": (0, 1, 0, 1), "keys": (0, 1, 0, 1)},
    "empty_at_both_ends": {"queries": (0, 12, 8, 0), "keys": (0, 12, 8, 0)},
    "no_keys": {"queries": (3, 0, 2), "keys": (0, 0, 7)},
    "all_empty": {"queries": (0, 0), "keys": (0, 0)},
    "more_queries": {"queries": (20, 4), "keys": (7, 4), "heads": 3, "kv_heads": 3},
    "decode": {"queries": (1, 1, 1), "keys": (127, 128, 129), "kv_heads": 1, "dim": 64},
    "last_third": {"queries": (13,), "keys": (39,), "heads": 2},
    "odd_dim": {"queries": (18,), "keys": (18,), "heads": 6, "kv_heads": 3, "dim": 73},
    "grouped_bf16": {"heads": 6, "kv_heads": 2, "dim": 32, "dtype": torch.bfloat16},
}


def _one_matrix(q, k, v, cu_q, cu_k):
    """All pairs of tokens, masked to those of one sequence."""

    def places(ends, count):
        index = torch.arange(count, device=ends.device)
        row = torch.searchsorted(ends[1:].contiguous(), index, right=True)
        return row, ends[1:][row] - index  # sequence, and distance to its end

    group = q.shape[1] // k.shape[1]
    keys, values = (t.float().repeat_interleave(group, dim=1) for t in (k, v))
    (at, left), (from_, remaining) = places(cu_q, q.shape[0]), places(cu_k, k.shape[0])
    visible = (at[:, None] == from_) & (remaining >= left[:, None])
    scores = torch.einsum("thd,shd->hts", q.float(), keys) / q.shape[2] ** 0.5
    p = torch.softmax(scores.masked_fill(~visible, float("-inf")), dim=-1)
    return torch.einsum("hts,shd->thd", p.masked_fill(~visible, 0.0), values).to(q.dtype)


BASELINES = {"one masked matrix": _one_matrix}


def _pairs(queries, keys):
    return sum(max(0, s - t + i + 1) for t, s in zip(queries, keys, strict=True) for i in range(t))


def FLOPS(queries=(9, 0, 17, 1), keys=(9, 5, 33, 40), heads=4, dim=24):
    return 4 * _pairs(queries, keys) * heads * dim


def BYTES(
    queries=(9, 0, 17, 1), keys=(9, 5, 33, 40), heads=4, kv_heads=2, dim=24, dtype=torch.float32
):
    return 2 * (sum(queries) * heads + sum(keys) * kv_heads) * dim * dtype.itemsize
