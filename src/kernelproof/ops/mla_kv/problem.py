"""Latent key/value projection: the reference, its cases and what to compare a kernel with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Model(nn.Module):
    """Keys and values of multi-head latent attention, from a low-rank latent of each token.

    Args:
        kv_heads: number of key/value heads, H.
    """

    def __init__(self, kv_heads: int = 4) -> None:
        super().__init__()
        self.kv_heads = kv_heads

    def forward(
        self,
        hidden: torch.Tensor,
        w_down: torch.Tensor,
        w_up_k: torch.Tensor,
        w_up_v: torch.Tensor,
    ) -> torch.Tensor:
        """``hidden (B, S, M)``, ``w_down (M, R)``, ``w_up_k`` and ``w_up_v (R, H*D)`` to keys and
        values ``(B, S, 2, H, D)``."""
        batch, seq, model = hidden.shape
        head_dim = w_up_k.shape[1] // self.kv_heads
        latent = hidden.reshape(batch * seq, model) @ w_down
        k = (latent @ w_up_k).view(batch, seq, self.kv_heads, head_dim)
        v = (latent @ w_up_v).view(batch, seq, self.kv_heads, head_dim)
        return torch.stack((k, v), dim=2)


def get_inputs(
    batch: int = 4,
    seq: int = 96,
    model: int = 256,
    rank: int = 48,
    kv_heads: int = 4,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    scale: float = 1.0,
    zero_rows: bool = False,
    layout: str = "contiguous",
) -> list[torch.Tensor]:
    """hidden, w_down, w_up_k and w_up_v, all from the standard normal distribution.

    ``scale`` is a factor on hidden. ``zero_rows``: every third token of hidden is zero.
    ``layout``: "contiguous", or "columns", where hidden is the first columns of a wider tensor.
    """
    hidden = scale * torch.randn(batch, seq, model, dtype=dtype)
    if zero_rows:
        hidden[:, 1::3] = 0
    if layout == "columns":
        hidden = torch.cat((hidden, torch.full_like(hidden[..., :9], 1e4)), dim=-1)[..., :model]
    return [
        hidden,
        torch.randn(model, rank, dtype=dtype),
        torch.randn(rank, kv_heads * head_dim, dtype=dtype),
        torch.randn(rank, kv_heads * head_dim, dtype=dtype),
    ]


def get_init_inputs(kv_heads: int = 4) -> list[Any]:
    return [kv_heads]


CASES: dict[str, dict[str, Any]] = {
    "founding": {},
    "one_of_each": dict(batch=1, seq=1, model=1, rank=1, kv_heads=1, head_dim=1),
    "one_token": dict(batch=1, seq=1),
    "no_tokens": dict(batch=2, seq=0),
    "odd": dict(batch=3, seq=7, model=61, rank=19, kv_heads=3, head_dim=11),
    "one_over": dict(batch=1, seq=33, model=257, rank=49, kv_heads=1, head_dim=129),
    "tail_token": dict(batch=1, seq=385),
    "rank_one": dict(batch=2, seq=5, rank=1),
    "wide_model": dict(batch=2, seq=9, model=1536, rank=32, kv_heads=2, head_dim=16),
    "deep_rank": dict(batch=1, seq=20, model=96, rank=512, kv_heads=2, head_dim=64),
    "decode": dict(batch=16, seq=1, model=1024, rank=256, kv_heads=16, head_dim=64),
    "decode_rank_8": dict(batch=16, seq=1, model=64, rank=8, kv_heads=1),
    "one_more_row": dict(batch=17, seq=1, model=64, rank=8, kv_heads=1),
    "wide_output": dict(batch=1, seq=3, model=16, rank=8, kv_heads=1, head_dim=3424),
    "many_tokens": dict(batch=1, seq=65_600, model=1, rank=1, kv_heads=1, head_dim=1),
    "huge_values": dict(batch=1, seq=10, model=70, rank=9, kv_heads=1, scale=1e30),
    "zero_rows": dict(batch=1, seq=20, model=40, rank=9, kv_heads=1, zero_rows=True),
    "row_strided": dict(batch=2, seq=10, model=70, rank=9, kv_heads=2, layout="columns"),
    "long": dict(batch=2, seq=520, model=128, rank=64, kv_heads=4, head_dim=32),
}

# Offsets past 2^31, in the output and in hidden.
LARGE: dict[str, dict[str, Any]] = {
    "output_past_2_31": dict(batch=1, seq=8_388_736, model=16, rank=8),
    "hidden_past_2_31": dict(batch=1, seq=8_388_736, rank=8, kv_heads=1, head_dim=1),
}

# `|out|` reaches several hundred with unscaled normal weights, so float32 arithmetic itself is
# about 1e-4 away from the exact result: this tolerance leaves no room for TF32 (0.2 away).
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


class TwoMatmuls(Model):
    """The up-projections as one product; the weights are joined in every call."""

    def forward(
        self,
        hidden: torch.Tensor,
        w_down: torch.Tensor,
        w_up_k: torch.Tensor,
        w_up_v: torch.Tensor,
    ) -> torch.Tensor:
        up = torch.cat((w_up_k, w_up_v), dim=1)
        head_dim = w_up_k.shape[1] // self.kv_heads
        out = (hidden @ w_down) @ up
        return out.view(*hidden.shape[:-1], 2, self.kv_heads, head_dim)


class WrittenInPlace(Model):
    """Two up-projections that write into the halves of the output, without a stack."""

    def forward(
        self,
        hidden: torch.Tensor,
        w_down: torch.Tensor,
        w_up_k: torch.Tensor,
        w_up_v: torch.Tensor,
    ) -> torch.Tensor:
        batch, seq, model = hidden.shape
        columns = w_up_k.shape[1]
        latent = hidden.reshape(batch * seq, model) @ w_down
        out = hidden.new_empty(batch * seq, 2, columns)
        torch.matmul(latent, w_up_k, out=out[:, 0])
        torch.matmul(latent, w_up_v, out=out[:, 1])
        return out.view(batch, seq, 2, self.kv_heads, columns // self.kv_heads)


BASELINES: dict[str, Callable[..., Any]] = {
    "two matmuls": TwoMatmuls,
    "written in place": WrittenInPlace,
}


def FLOPS(
    batch: int = 4,
    seq: int = 96,
    model: int = 256,
    rank: int = 48,
    kv_heads: int = 4,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Multiplications and additions of the three products."""
    return 2 * batch * seq * rank * (model + 2 * kv_heads * head_dim)


def BYTES(
    batch: int = 4,
    seq: int = 96,
    model: int = 256,
    rank: int = 48,
    kv_heads: int = 4,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Each input read once, the output written once."""
    columns = kv_heads * head_dim
    weights = model * rank + 2 * rank * columns
    return (batch * seq * (model + 2 * columns) + weights) * dtype.itemsize
