"""Causal attention on int8 tensors with one scale per head: the reference that kernels must equal.

    q = q_q * q_scale[h],  k = k_q * k_scale[h],  v = v_q * v_scale[h]
    out[b, t, h] = softmax(k[b, :t+1, h] @ q[b, t, h] / sqrt(D)) @ v[b, :t+1, h]

Layout: q (B, Sq, Hq, D), k and v (B, Skv, Hkv, D), all int8; scales (Hq,), (Hkv,), (Hkv,); output
(B, Sq, Hq, D) in the scales' dtype. Query head h reads key head h // (Hq // Hkv). With Sq != Skv
the causal diagonal ends in the bottom right corner (the last query sees every key); a query that
sees no key gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """The definition, one query row at a time. float64 scales make it a float64 computation."""
    dtype = q_scale.dtype
    q = q.to(dtype) * q_scale.view(1, 1, -1, 1)
    k = k.to(dtype) * k_scale.view(1, 1, -1, 1)
    v = v.to(dtype) * v_scale.view(1, 1, -1, 1)
    batch, q_len, heads, dim = q.shape
    kv_len, kv_heads = k.shape[1], k.shape[2]
    factor = scale if scale is not None else 1 / math.sqrt(max(dim, 1))
    out = torch.zeros(q.shape, dtype=dtype, device=q.device)
    for b in range(batch):
        for h in range(heads):
            g = h * kv_heads // heads
            keys, values, rows = k[b, :, g], v[b, :, g].T, out[b, :, h]
            for t, query in enumerate(q[b, :, h].unbind()):
                visible = kv_len - q_len + t + 1 if causal else kv_len
                if visible <= 0:
                    continue
                p = torch.softmax((keys[:visible] @ query) * factor, dim=0)
                rows[t] = values[:, :visible] @ p
    return out


class Model(nn.Module):
    """The founding problem; ``causal=False`` lets every query see every key."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self,
        q_q: Tensor,
        k_q: Tensor,
        v_q: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
    ) -> Tensor:
        return reference(q_q, k_q, v_q, q_scale, k_scale, v_scale, self.causal)


def get_inputs(
    batch: int = 2,
    seq: int = 72,
    heads: int = 4,
    head_dim: int = 32,
    kv_seq: int | None = None,
    kv_heads: int | None = None,
    scale_low: float = 0.005,
    scale_high: float = 0.025,
    causal: bool = True,
    values: str = "uniform",
    layout: str = "contiguous",
) -> list[Tensor]:
    """int8 values uniform in [-127, 127], scales uniform in [scale_low, scale_high].

    ``kv_seq`` and ``kv_heads`` default to ``seq`` and ``heads``. ``causal`` is the module's; it is
    accepted so that one set of keywords describes a case.

    ``values``: "uniform"; "extreme", only -128 and 127; "zero_rows", where every third token of q,
    k and v is zero; "offset_keys", keys in [90, 127], whose common part cancels in the softmax.
    ``layout``: "contiguous"; "columns", where q, k and v are columns of one fused projection; or
    "slots", where each head of each token of k and v is followed by four more bytes (room for a
    scale), so that heads are not aligned to their length.
    """
    del causal
    kv_seq = seq if kv_seq is None else kv_seq
    kv_heads = heads if kv_heads is None else kv_heads
    q_shape, kv_shape = (batch, seq, heads, head_dim), (batch, kv_seq, kv_heads, head_dim)
    drawn = [
        torch.randint(-127, 128, shape, dtype=torch.int8) for shape in (q_shape, kv_shape, kv_shape)
    ]
    q, k, v = (_family(t, values, key=i == 1) for i, t in enumerate(drawn))
    scales = [
        torch.rand(count) * (scale_high - scale_low) + scale_low
        for count in (heads, kv_heads, kv_heads)
    ]
    return [*_laid_out(layout, q, k, v), *scales]


def _family(x: Tensor, values: str, key: bool) -> Tensor:
    """``x``, uniform in [-127, 127], turned into the family of ``get_inputs``."""
    if values == "extreme":
        return torch.where(x > 0, 127, -128).to(torch.int8)
    if values == "zero_rows":
        x[:, 1::3] = 0
    if values == "offset_keys" and key:
        return (109 + x.div(7, rounding_mode="trunc")).to(torch.int8)
    return x


def _laid_out(layout: str, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The same values with other strides."""
    if layout == "columns":
        fused = torch.cat((q.flatten(2), k.flatten(2), v.flatten(2)), dim=-1)
        widths = [t.shape[2] * t.shape[3] for t in (q, k, v)]
        views = zip(fused.split(widths, dim=-1), (q, k, v), strict=True)
        return [columns.unflatten(-1, t.shape[2:]) for columns, t in views]
    if layout == "slots":
        return [q, *(F.pad(t, (0, 4), value=99)[..., : t.shape[3]] for t in (k, v))]
    return [q, k, v]


def get_init_inputs(causal: bool = True) -> list[Any]:
    return [causal]


# fmt: off
CASES: dict[str, dict[str, Any]] = {
    "founding": {},
    "one_of_each": {"batch": 1, "seq": 1, "heads": 1, "head_dim": 1},
    "no_batch": {"batch": 0},
    "no_tokens": {"seq": 0},
    "no_keys": {"seq": 5, "kv_seq": 0},
    "odd": {"batch": 3, "seq": 37, "heads": 3, "head_dim": 19},
    "tile_edges": {"batch": 1, "seq": 49, "heads": 2, "head_dim": 64},
    "bidirectional": {"batch": 1, "seq": 40, "heads": 2, "head_dim": 96, "causal": False},
    "grouped": {"batch": 1, "seq": 33, "heads": 6, "kv_heads": 2, "head_dim": 128},
    "decode": {"batch": 3, "seq": 1, "kv_seq": 203, "heads": 4, "kv_heads": 1},
    "more_queries_than_keys": {"batch": 1, "seq": 50, "kv_seq": 21, "heads": 2},
    "signed_scales": {"batch": 1, "seq": 30, "heads": 8, "scale_low": -0.025, "scale_high": 0.025},
    "zero_scales": {"batch": 1, "seq": 20, "scale_low": 0.0, "scale_high": 0.0},
    "appended": {"batch": 1, "seq": 13, "kv_seq": 39, "heads": 2},
    "two_of_five": {"batch": 1, "seq": 2, "kv_seq": 5, "heads": 1, "head_dim": 16},
    "one_key_tile": {"batch": 1, "seq": 1, "kv_seq": 128, "heads": 2, "head_dim": 64},
    "one_key_short": {"batch": 1, "seq": 1, "kv_seq": 127, "heads": 2, "head_dim": 64},
    "head_dim_72": {"batch": 1, "seq": 18, "heads": 1, "head_dim": 72},
    "head_dim_80": {"batch": 1, "seq": 17, "heads": 1, "head_dim": 80},
    "head_dim_256": {"batch": 1, "seq": 9, "heads": 2, "kv_heads": 1, "head_dim": 256},
    "extreme_values": {"batch": 1, "seq": 20, "heads": 2, "values": "extreme"},
    "zero_rows": {"batch": 1, "seq": 19, "heads": 1, "values": "zero_rows"},
    "offset_keys": {"batch": 1, "seq": 9, "heads": 4, "kv_heads": 2, "values": "offset_keys"},
    "huge_scales": {"batch": 1, "seq": 12, "heads": 1, "scale_low": 200.0, "scale_high": 300.0},
    "fused_columns": {"batch": 2, "seq": 9, "heads": 2, "layout": "columns"},
    "slots_with_scale": {
        "batch": 1, "seq": 3, "kv_seq": 11, "heads": 2, "head_dim": 256, "layout": "slots",
    },
    "larger": {"batch": 1, "seq": 193, "heads": 1, "head_dim": 64},
}
# fmt: on


class DequantisedSDPA(nn.Module):
    """Dequantise to fp32, then PyTorch's fused attention."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self,
        q_q: Tensor,
        k_q: Tensor,
        v_q: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
    ) -> Tensor:
        q = (q_q * q_scale.view(1, 1, -1, 1)).transpose(1, 2)
        k = (k_q * k_scale.view(1, 1, -1, 1)).transpose(1, 2)
        v = (v_q * v_scale.view(1, 1, -1, 1)).transpose(1, 2)
        q_len, kv_len = q.shape[2], k.shape[2]
        grouped = q.shape[1] != k.shape[1]
        if not self.causal or q_len == kv_len:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
            return out.transpose(1, 2)
        # is_causal means the top left corner in PyTorch; other shapes need the mask spelled out.
        mask = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device)
        mask = mask.tril(kv_len - q_len)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
        return out.masked_fill(~mask.any(dim=1, keepdim=True), 0.0).transpose(1, 2)


BASELINES: dict[str, Any] = {"dequantised_sdpa": DequantisedSDPA}


def _without_scale(number: int) -> Callable[..., Tensor]:
    def slip(q: Tensor, k: Tensor, v: Tensor, *scales: Tensor) -> Tensor:
        a, b, c = (torch.ones_like(x) if n == number else x for n, x in enumerate(scales))
        return reference(q, k, v, a, b, c)

    return slip


MISTAKES = {
    f"{name} is not applied": _without_scale(number)
    for number, name in enumerate(("q_scale", "k_scale", "v_scale"))
}


def FLOPS(
    batch: int = 2,
    seq: int = 72,
    heads: int = 4,
    head_dim: int = 32,
    kv_seq: int | None = None,
    causal: bool = True,
    **_: Any,
) -> int:
    """Multiplies and adds of the two products over the visible pairs, without the softmax."""
    keys = seq if kv_seq is None else kv_seq
    pairs = seq * keys
    if causal:
        pairs = sum(max(0, min(keys, keys - seq + t + 1)) for t in range(seq))
    return 4 * batch * heads * head_dim * pairs


def BYTES(
    batch: int = 2,
    seq: int = 72,
    heads: int = 4,
    head_dim: int = 32,
    kv_seq: int | None = None,
    kv_heads: int | None = None,
    **_: Any,
) -> int:
    """Each input read once and the fp32 output written once."""
    keys = seq if kv_seq is None else kv_seq
    groups = heads if kv_heads is None else kv_heads
    rows = batch * seq * heads * head_dim
    return rows * (1 + 4) + 2 * batch * keys * groups * head_dim + 4 * (heads + 2 * groups)
