"""One decoding step of attention over a paged cache of int8 keys and values.

Token s of sequence b lies in slot ``s % page`` of page ``table[b, s // page]``:

    p[s]    = softmax_{s < lengths[b]}(q[b, h] . k[s, g] * k_scale[g] / sqrt(D))
    y[b, h] = sum_s p[s] * v[s, g] * v_scale[g]

with g = h // (Hq / Hkv). ``q`` is (B, Hq, D), ``k_cache`` and ``v_cache`` are int8 (pages, page,
Hkv, D), ``k_scale`` and ``v_scale`` (Hkv,) fp32, ``table`` (B, most pages of a sequence) and
``lengths`` (B,) int32. The result is (B, Hq, D) in the dtype of ``q``; an empty sequence gives
zeros.

Traps for kernel writers:

- ``table`` is -1 behind the last page of a sequence: reading that page is out of bounds.
- Slots behind the last token of a page hold what was there before, here 127 throughout.
- Pages of a sequence lie anywhere; only slots inside a page are neighbours.
- ``q`` and the cache have different dtypes. int8 is exact in bf16 and fp16; an int8 product summed
  in int8 or int16 is not.
- A head's slot may be longer than D (the case ``slots_with_scale``: 4 bytes of scale follow each
  head), which leaves rows unaligned: use the strides.
"""

import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k_cache, v_cache, k_scale, v_scale, table, lengths):
        page, kv_heads, dim = k_cache.shape[1:]
        group = q.shape[1] // kv_heads
        y = torch.zeros_like(q, dtype=torch.float32)
        for b, length in enumerate(lengths.tolist()):
            if length == 0:
                continue
            pages = table[b, : -(-length // page)].long()
            k = k_cache[pages].flatten(0, 1)[:length].float() * k_scale.view(-1, 1)
            v = v_cache[pages].flatten(0, 1)[:length].float() * v_scale.view(-1, 1)
            own = q[b].float().view(kv_heads, group, dim)
            p = torch.softmax(torch.einsum("gid,sgd->gis", own, k) / math.sqrt(dim), dim=-1)
            y[b] = torch.einsum("gis,sgd->gid", p, v).reshape(-1, dim)
        return y.to(q.dtype)


def get_inputs(
    lengths=(37, 16, 0, 50),
    page=16,
    heads=4,
    kv_heads=2,
    dim=32,
    gap=0,
    dtype=torch.float32,
):
    """``gap``: bytes that follow each head's D bytes in the cache."""
    counts = [-(-length // page) for length in lengths]
    total = sum(counts) + 2
    order = torch.randperm(total).to(torch.int32)
    table = torch.full((len(lengths), max(counts, default=0)), -1, dtype=torch.int32)
    caches = [
        torch.randint(-128, 128, (total, page, kv_heads, dim + gap), dtype=torch.int8)[..., :dim]
        for _ in range(2)
    ]
    for b, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        table[b, :count], order = order[:count], order[count:]
        if length % page:
            for cache in caches:
                cache[int(table[b, count - 1]), length % page :] = 127
    scales = [0.01 + 0.01 * torch.rand(kv_heads) for _ in range(2)]
    return [
        torch.randn(len(lengths), heads, dim).to(dtype),
        *caches, *scales, table, torch.tensor(lengths, dtype=torch.int32),
    ]  # fmt: skip


CASES = {
    "default": {},
    "one": {"lengths": (1,), "page": 1, "heads": 1, "kv_heads": 1, "dim": 1},
    "empty": {"lengths": (0, 0)},
    "page_of_one": {"lengths": (19, 3), "page": 1},
    "page_edges": {"lengths": (127, 128, 129), "page": 64, "heads": 2, "dim": 16},
    "one_kv_head": {"lengths": (33, 5), "heads": 7, "kv_heads": 1, "dim": 72},
    "slots_with_scale": {"lengths": (18, 7), "heads": 2, "kv_heads": 1, "dim": 256, "gap": 4},
    "bf16_query": {"lengths": (40, 11), "dtype": torch.bfloat16},
}


def _padded(q, k_cache, v_cache, k_scale, v_scale, table, lengths):
    """All sequences at once, gathered to the longest one and masked."""
    kv_heads, dim = k_cache.shape[2:]
    if table.shape[1] == 0:
        return torch.zeros_like(q)
    pages = table.clamp(min=0).long()
    k = k_cache[pages].flatten(1, 2).float() * k_scale.view(-1, 1)
    v = v_cache[pages].flatten(1, 2).float() * v_scale.view(-1, 1)
    own = q.float().unflatten(1, (kv_heads, -1)) / math.sqrt(dim)
    scores = torch.einsum("bgid,bsgd->bgis", own, k)
    seen = torch.arange(k.shape[1], device=q.device) < lengths.unsqueeze(1)
    seen = seen[:, None, None]
    p = torch.softmax(scores.masked_fill(~seen, float("-inf")), dim=-1).masked_fill(~seen, 0.0)
    return torch.einsum("bgis,bsgd->bgid", p, v).flatten(1, 2).to(q.dtype)


BASELINES = {"gathered and padded": _padded}


def FLOPS(lengths=(37, 16, 0, 50), heads=4, dim=32):
    return 4 * sum(lengths) * heads * dim


def BYTES(lengths=(37, 16, 0, 50), page=16, heads=4, kv_heads=2, dim=32, dtype=torch.float32):
    pages = sum(-(-length // page) for length in lengths)
    cache = 2 * sum(lengths) * kv_heads * dim + 4 * pages
    return cache + 2 * len(lengths) * heads * dim * dtype.itemsize
