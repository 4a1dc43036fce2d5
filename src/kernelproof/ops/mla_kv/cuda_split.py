"""The design of mla_kv for few tokens of any type and layout on sm_90 (kernel_split.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_few import few
from kernelproof.ops.mla_kv.cuda_operands import (
    C_TYPES,
    NO_SIDE,
    Operands,
    down_side,
    packed_sizes,
)
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Plan, ceil_div, tile_counts

_BLOCKS = 8  # kBlocks of kernel_split.cu
_SHARED_LIMIT = 227 * 1024 - 512
# Of a tile of w_down and of w_up, as measured on an H200.
_RANK_ELEMENTS, _COLUMN_BYTES = (1 << 14) - 1, (1 << 17) - 1


class Split(NamedTuple):
    """Tokens of a block; its columns of w_down and of w_up, 16, 32, 64 or 128; its threads."""

    tokens: int
    rank: int
    columns: int
    threads: int = 256


def form_of(n: Operands, device: Device) -> Split:
    """The widest tiles, up to a size, that still give nearly half of the multiprocessors one."""
    tokens = 16 if n.tokens <= 16 else 32
    tiles = ceil_div(n.tokens, tokens)
    share = ceil_div(n.model, _BLOCKS)

    def widest(columns: tuple[int, ...], blocks: int, most: int) -> int:
        for width in (64, 32):
            count = tiles * blocks * sum(ceil_div(c, width) for c in columns)
            if width <= most and 2.2 * count >= device.multiprocessors:
                return width
        return 16

    rank = widest((n.rank,), _BLOCKS, _RANK_ELEMENTS // max(share, 1))
    most = _COLUMN_BYTES // (n.rank * n.size)
    columns = widest((n.up[0].columns, n.up[1].columns), 1, most)
    return Split(tokens, rank, columns, 512 if n.size == 4 and tokens > 16 else 256)


def _fastest(n: Operands, device: Device) -> bool:
    """As measured on an H200."""
    weights = n.rank * (n.model + n.columns) * n.size
    if n.size == 2:
        return 8 < n.tokens <= 16 and n.rank > 128 and weights <= 8 << 20
    if n.tokens > 32 or weights > 16 << 20:
        return False
    return n.tokens > 8 or few(n, device) is None


def _warp_columns(tokens: int, columns: int, threads: int) -> int:
    """16, or more where a block has not that many warps."""
    rows = max(1, tokens // 32)
    return max(16, columns * rows // (threads // 32))


def _shared_bytes(n: Operands, form: Split, columns: int, depth: int, along_depth: bool) -> int:
    pad, tokens = 16 // n.size, form.tokens
    rows = max(1, tokens // 32)
    warps = rows * (columns // _warp_columns(tokens, columns, form.threads))
    weight = columns * (depth + pad) if along_depth else depth * (columns + 8)
    sums = form.threads // 32 // warps * tokens * (columns + 8) * 4
    return (tokens * (depth + pad) + weight) * n.size + sums


def split(
    n: Operands, device: Device, asked: bool = False, form: Split | None = None
) -> Plan | None:
    """mla_kv_split_down and mla_kv_split_up, or None where they do not fit.

    Args:
        asked: also where other designs are faster.
        form: instead of the one that is chosen.
    """
    if device.capability[0] != 9 or n.dtype == torch.float64 or not n.rank or not n.model:
        return None
    k, v = n.up
    if k.along_depth != v.along_depth or (n.norm and n.dtype == torch.float16):
        return None  # latents before their norm may be too large for float16
    if not asked and not _fastest(n, device):
        return None
    form = form or form_of(n, device)
    step = 32 // n.size
    share = step * ceil_div(ceil_div(n.model, step), _BLOCKS)
    depth = step * ceil_div(n.rank, step)
    down_bytes = _shared_bytes(n, form, form.rank, share, n.down.along_depth)
    up_bytes = _shared_bytes(n, form, form.columns, depth, k.along_depth)
    if max(down_bytes, up_bytes) > _SHARED_LIMIT:
        return None
    kind = f"{C_TYPES[n.dtype]}, {3 if n.dtype == torch.float32 and n.accuracy == 'strict' else 1}"

    def name_of(product: str, terms: int, columns: int, *flags: bool) -> str:
        sizes = (terms, form.tokens, columns, _warp_columns(form.tokens, columns, form.threads))
        words = (*map(str, sizes), *(str(f).lower() for f in (*flags, n.norm)), str(form.threads))
        return f"mla_kv_split_{product}<{kind}, {', '.join(words)}>"

    squares = "squares" if n.norm else None
    tiles = tile_counts(n.tokens, (down_side(n), NO_SIDE), (form.tokens, form.rank))
    wide = n.hidden.wide(n.size), n.down.wide(n.size)
    sizes = packed_sizes(n.hidden, n.model, n.model, (down_side(n), NO_SIDE), tiles, n.size)
    down = Launch(
        "kernel_split.cu", name_of("down", n.model, form.rank, n.down.along_depth, *wide),
        ("hidden", "w_down", "norm_weight" if n.norm else None, "latent", squares, sizes),
        _BLOCKS * tiles[0] * tiles[1], form.threads, down_bytes, cluster=_BLOCKS,
    )  # fmt: skip
    counts = tile_counts(n.tokens, n.sides(), (form.tokens, form.columns))
    wide = n.rank * n.size % 16 == 0, k.wide(n.size) and v.wide(n.size)
    sizes = packed_sizes(n.hidden, n.rank, n.rank, n.sides(), counts, n.size, n.k_pe)
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    up = Launch(
        "kernel_split.cu", name_of("up", n.rank, form.columns, k.along_depth, *wide),
        (
            "latent", "w_up_k", "w_up_v", squares, "k_pe" if n.rope else None, *outs, sizes,
            tiles[1], float(n.epsilon),
        ),
        counts[0] * (counts[1] + counts[2]), form.threads, up_bytes,
    )  # fmt: skip
    scratch = [("latent", n.tokens * n.rank, n.dtype)]
    if n.norm:
        scratch.append(("squares", tiles[1] * n.tokens, torch.float32))
    why = "few tokens: two launches, the weights of the second on their way during the first"
    return Plan("split", (down, up), tuple(scratch), why)
