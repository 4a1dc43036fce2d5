"""int8 attention in plain PyTorch: every form, any device, gradients in the scales and fp16 v."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernelproof.ops.int8_attention.contract import PLAIN, Form

Rounding = Callable[[Tensor], Tensor]


def dequantised(x: Tensor, scale: Tensor, block: int = 1) -> Tensor:
    """``x`` (B, S, H, D) times its scale, (H,) or (B, ceil(S / block), H), in the scale's dtype."""
    return x.to(scale.dtype) * _of_tokens(x, scale, block).unsqueeze(-1)


def _of_tokens(x: Tensor, scale: Tensor, block: int) -> Tensor:
    """The scale of each token of ``x``, (B, S, H)."""
    if scale.dim() == 3:
        return scale.repeat_interleave(block, dim=1)[:, : x.shape[1]]
    return scale.expand(x.shape[:3])


class Sequence(NamedTuple):
    """Where the queries and the keys of one sequence are."""

    batch: int
    queries: slice
    keys: slice
    pages: Tensor | None  # None: the keys are those of `batch`


def sequences(q: Tensor, k: Tensor, form: Form) -> Iterator[Sequence]:
    """Each sequence in turn. Reads offsets and lengths back to the host."""
    if form.cu_seqlens_q is not None and form.cu_seqlens_k is not None:
        at_q, at_k = form.cu_seqlens_q.tolist(), form.cu_seqlens_k.tolist()
        for n in range(len(at_q) - 1):
            yield Sequence(0, slice(at_q[n], at_q[n + 1]), slice(at_k[n], at_k[n + 1]), None)
        return
    lens = [k.shape[1]] * q.shape[0] if form.kv_lens is None else form.kv_lens.tolist()
    for b, length in enumerate(lens):
        pages = None
        if form.block_table is not None:
            pages = form.block_table[b, : -(-length // max(k.shape[1], 1))].long()
        yield Sequence(b, slice(0, q.shape[1]), slice(0, length), pages)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
    form: Form = PLAIN,
    rounding: Rounding | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (B, Sq, Hq, D) and logarithms of the sums of exponentials (B, Sq, Hq), both in the
    scales' dtype (float64 scales make it a float64 computation). ``rounding`` is applied to the
    weights of the values, (H, T, S): probabilities times the scales of the values."""
    block = form.block or (1, 1, 1)
    dtype, group = q_scale.dtype, q.shape[2] // max(k.shape[2], 1)
    wide_q, wide_k = dequantised(q, q_scale, block[0]), dequantised(k, k_scale, block[1])
    wide_v, factors = v.to(dtype), _of_tokens(v, v_scale, block[2]).unsqueeze(-1)
    outs, sums, places = [], [], []
    for one in sequences(q, k, form):
        if one.pages is None:
            found = [t[one.batch, one.keys] for t in (wide_k, wide_v, factors)]
        else:
            found = [t[one.pages].flatten(0, 1)[one.keys] for t in (wide_k, wide_v, factors)]
        own = wide_q[one.batch, one.queries]
        keys, values, factor = (t.repeat_interleave(group, dim=1) for t in found)
        y, total = _rows(own, keys, values, factor, causal, scale, rounding)
        outs.append(y)
        sums.append(total)
        places.append(one)
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    lse = torch.full(q.shape[:3], -math.inf, dtype=dtype, device=q.device)
    for one, y, total in zip(places, outs, sums, strict=True):
        out[one.batch, one.queries] = y
        lse[one.batch, one.queries] = total
    return out, lse


def _rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factor: Tensor,
    causal: bool,
    scale: float,
    rounding: Rounding | None,
) -> tuple[Tensor, Tensor]:
    """Outputs (T, H, D) and logarithms of sums (T, H) of one sequence, q (T, H, D), k and v
    (S, H, D), the values' scales (S, H, 1). Under the causal mask one query after another, so that
    nothing of a key that a query does not see can reach it, NaN included."""
    count, late = q.shape[0], k.shape[0] - q.shape[0]
    parts = [(slice(t, t + 1), max(late + t + 1, 0)) for t in range(count)]
    if not causal:
        parts = [(slice(0, count), k.shape[0])]
    outs, sums = [torch.zeros_like(q[:0])], [q.new_zeros((0, q.shape[1]))]
    for rows, visible in parts:
        own = q[rows]
        if visible == 0:
            outs.append(torch.zeros_like(own))
            sums.append(own.new_full(own.shape[:2], -math.inf))
            continue
        scores = torch.einsum("thd,shd->hts", own, k[:visible]) * scale
        p = torch.softmax(scores, dim=-1)
        values = v[:visible]
        if rounding is None:
            values = values * factor[:visible]
        else:
            p = rounding(p * factor[:visible].permute(1, 2, 0))
        outs.append(torch.einsum("hts,shd->thd", p, values))
        sums.append(torch.logsumexp(scores, dim=-1).T)
    return torch.cat(outs), torch.cat(sums)
