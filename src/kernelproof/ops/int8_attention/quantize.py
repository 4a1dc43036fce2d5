"""Symmetric int8 quantisation, and attention of floating-point tensors through it."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

Granularity = Literal["head", "token", "block"]
_GRANULARITIES = ("head", "token", "block")


def quantize_int8(
    x: Tensor,
    granularity: Granularity = "head",
    *,
    block: int | None = None,
    dtype: torch.dtype = torch.int8,
) -> tuple[Tensor, Tensor]:
    """Integers in [-127, 127] and float32 scales with ``x ~ integers * scale``.

    The scale of a group is its largest magnitude / 127; values are rounded to the nearest integer,
    halves to even, from float32. The error of an element is half its scale at most.

    - A group of zeros only (or so small that its scale would round to 0) has the scale 1 and zeros.
    - A group that holds a NaN or an infinity has the scale NaN and zeros, so whatever it enters
      becomes NaN: it is never read as a finite number.

    Args:
        x: (B, S, H, D), floating point.
        granularity: "head" gives one scale for each head, (H,); "token" (B, S, H); "block"
            (B, ceil(S / block), H), for each ``block`` tokens, the last block may be shorter.
        dtype: torch.int8, or torch.float16 for the same integers in fp16 (exact): values in this
            form spare the attention kernel their conversion, at twice the memory.

    Raises:
        TypeError: x is not floating point, or ``dtype`` is another one.
        ValueError: x has not four axes, ``granularity`` is unknown, or ``block`` is missing, below
            1, or given without granularity="block".
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}; it must be floating point")
    if dtype not in (torch.int8, torch.float16):
        raise TypeError(f"dtype is {dtype}; it must be torch.int8 or torch.float16")
    if x.dim() != 4:
        raise ValueError(f"x has shape {tuple(x.shape)}; it must be (B, S, H, D)")
    if granularity not in _GRANULARITIES:
        raise ValueError(f"granularity is {granularity!r}; it must be one of {_GRANULARITIES}")
    if (granularity == "block") != (block is not None) or (block is not None and block < 1):
        raise ValueError(
            f"granularity={granularity!r} with block={block}; block= is a number of tokens, at "
            'least 1, and goes with granularity="block" only'
        )
    wide = x.detach().float()
    largest = _largest(wide, granularity, block)
    scale = largest / 127.0
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    scale = torch.where(largest.isfinite(), scale, torch.full_like(scale, math.nan))
    spread = scale
    if block is not None:
        spread = scale.repeat_interleave(block, dim=1)[:, : x.shape[1]]
    values: Tensor = torch.round(wide / spread.unsqueeze(-1)).nan_to_num_(0.0).clamp_(-127, 127)
    return values.to(dtype), scale


def _largest(x: Tensor, granularity: str, block: int | None) -> Tensor:
    """Largest magnitude of each group; a NaN is the largest."""
    size = x.abs()
    if x.shape[3] == 0:
        size = torch.zeros((*x.shape[:3], 1), device=x.device)
    if granularity == "head":
        if size.numel() == 0:
            return torch.zeros(x.shape[2], device=x.device)
        return torch.amax(size, dim=(0, 1, 3))
    rows = size.amax(dim=3)
    if block is None:
        return rows
    count = -(-x.shape[1] // block)
    rows = nn.functional.pad(rows, (0, 0, 0, count * block - x.shape[1]))
    blocks: Tensor = rows.unflatten(1, (count, block))
    return blocks.amax(dim=2)


class _StraightThrough(torch.autograd.Function):
    """Attention through int8 forward; backward as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> Tensor:
        granularity, block, causal, scale, accuracy, impl = options
        out, lse, wide = _quantised(q, k, v, granularity, block, causal, scale, accuracy, impl)
        ctx.save_for_backward(*wide, out, lse)
        ctx.causal, ctx.scale = causal, scale
        ctx.dtypes = q.dtype, k.dtype, v.dtype
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        grads = attention_backward(grad, q, k, v, out, lse, ctx.causal, ctx.scale)
        return (*(g.to(d) for g, d in zip(grads, ctx.dtypes, strict=True)), None)


def _quantised(
    q: Tensor, k: Tensor, v: Tensor, granularity: Granularity, block: int | None, causal: bool,
    scale: float, accuracy: str, impl: str | None,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:  # fmt: skip
    """Output and its logarithms of sums in float32, and q, k, v as the kernel saw them."""
    from kernelproof.ops.int8_attention import int8_attention
    from kernelproof.ops.int8_attention.reference import dequantised

    pairs = [quantize_int8(t, granularity, block=block) for t in (q, k, v)]
    out, lse = int8_attention(
        *(values for values, _ in pairs), *(scales for _, scales in pairs), causal=causal,
        scale=scale, accuracy=accuracy, block=block, return_lse=True, impl=impl,
    )  # fmt: skip
    q_wide, k_wide, v_wide = (dequantised(*pair, block or 1) for pair in pairs)
    return out, lse, (q_wide, k_wide, v_wide)


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool,
    scale: float, rows: int = 256,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k, v (B, S, H, D) from that of the output (B, Sq, Hq, D), in float32.

    The probabilities are computed again from ``lse`` (B, Sq, Hq), ``rows`` queries at a time
    (FlashAttention, arXiv:2205.14135, algorithm 4): memory is linear in the length.
    """
    batch, q_len, heads, dim = q.shape
    kv_len, kv_heads = k.shape[1:3]
    group = heads // max(kv_heads, 1)
    grad, out = grad.float(), out.float()
    shared = (batch, q_len, kv_heads, group)
    query, answer = q.reshape(*shared, dim), grad.reshape(*shared, dim)
    total, dot = lse.reshape(shared), (grad * out).sum(-1).reshape(shared)
    q_grads, k_grad, v_grad = [], torch.zeros_like(k), torch.zeros_like(v)
    late = kv_len - q_len
    positions = torch.arange(kv_len, device=q.device)
    for start in range(0, q_len, rows):
        part = slice(start, min(start + rows, q_len))
        scores = torch.einsum("btgid,bsgd->bgits", query[:, part], k) * scale
        sums = total[:, part].permute(0, 2, 3, 1).unsqueeze(-1)
        p = torch.exp(scores - sums)
        if causal:
            last = torch.arange(part.start, part.stop, device=q.device) + late
            p = p.masked_fill(positions > last.unsqueeze(-1), 0.0)
        p = p.masked_fill(sums.isneginf(), 0.0)  # rows that see no key
        v_grad = v_grad + torch.einsum("bgits,btgid->bsgd", p, answer[:, part])
        change = torch.einsum("btgid,bsgd->bgits", answer[:, part], v)
        change = p * (change - dot[:, part].permute(0, 2, 3, 1).unsqueeze(-1)) * scale
        q_grads.append(torch.einsum("bgits,bsgd->btgid", change, k).flatten(2, 3))
        k_grad = k_grad + torch.einsum("bgits,btgid->bsgd", change, query[:, part])
    q_grad = torch.cat(q_grads, dim=1) if q_grads else torch.zeros_like(q)
    return q_grad, k_grad, v_grad


def scaled_dot_product_int8(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    granularity: Granularity = "token",
    block: int | None = None,
    accuracy: str = "high",
    backward: Literal["straight_through"] | None = None,
    impl: str | None = None,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` through int8: quantises and attends.

    Args:
        query: (B, Hq, Sq, D), floating point.
        key, value: (B, Hkv, Skv, D); Hq a multiple of Hkv (grouped heads need no flag).
        is_causal: the diagonal ends in the bottom right corner, as a cache needs it. (PyTorch's
            starts in the top left one; the two are equal where Sq == Skv.)
        scale: factor on the scores; ``1 / sqrt(D)`` by default.
        granularity, block: of the quantisation, see `quantize_int8`.
        accuracy, impl: see `int8_attention`.
        backward: None, where inputs that require a gradient are an error; or "straight_through":
            gradients as if quantisation were the identity, at the quantised values.

    Returns:
        (B, Hq, Sq, D) in the query's dtype.

    Raises:
        RuntimeError: an input requires a gradient and ``backward`` is None.
        TypeError, ValueError: see `quantize_int8` and `int8_attention`.
    """
    if backward not in (None, "straight_through"):
        raise ValueError(f"backward is {backward!r}; it may be None or 'straight_through'")
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise ValueError(
            "query, key and value must be (B, H, S, D), not "
            f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if wants and backward is None:
        raise RuntimeError(
            "an input requires a gradient, and rounding to int8 has none: give "
            'backward="straight_through" to treat it as the identity, or call under '
            "torch.no_grad()"
        )
    if scale is None:
        scale = 1.0 / math.sqrt(max(query.shape[-1], 1))
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if wants:
        options = (granularity, block, is_causal, scale, accuracy, impl)
        apply: Any = _StraightThrough.apply
        out: Tensor = apply(q, k, v, options)
        return out.transpose(1, 2)
    from kernelproof.ops.int8_attention import int8_attention
    from kernelproof.ops.int8_attention.contract import OUT_DTYPES

    pairs = [quantize_int8(t, granularity, block=block) for t in (q, k, v)]
    kept = query.dtype if query.dtype in OUT_DTYPES else torch.float32
    out = int8_attention(
        *(values for values, _ in pairs), *(scales for _, scales in pairs), causal=is_causal,
        scale=scale, accuracy=accuracy, block=block, out_dtype=kept, impl=impl,
    )  # fmt: skip
    return out.transpose(1, 2).to(query.dtype)


class Int8Attention(nn.Module):
    """`scaled_dot_product_int8` with its options fixed, for a model's attention layer.

    ``forward(query, key, value, is_causal=False)`` takes and returns (B, H, S, D).
    """

    def __init__(
        self,
        *,
        scale: float | None = None,
        granularity: Granularity = "token",
        block: int | None = None,
        accuracy: str = "high",
        backward: Literal["straight_through"] | None = None,
        impl: str | None = None,
    ) -> None:
        super().__init__()
        self.options: dict[str, Any] = {
            "scale": scale, "granularity": granularity, "block": block, "accuracy": accuracy,
            "backward": backward, "impl": impl,
        }  # fmt: skip

    def forward(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        return scaled_dot_product_int8(query, key, value, is_causal=is_causal, **self.options)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())
