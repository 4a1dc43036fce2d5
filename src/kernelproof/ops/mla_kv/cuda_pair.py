"""The design of mla_kv for some ten to some hundred tokens on sm_90 (kernel_pair.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_hopper import decode, tensor_map, weight_maps
from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Map, Plan, ceil_div, tile_counts

_DEPTH = 64  # of kernel_pair.cu
_SHARED_LIMIT = 227 * 1024 - 1024
_RANK = 512
_SHORT_RANK, _COLUMNS, _WEIGHTS = 256, 8192, 4_000_000


class Pair(NamedTuple):
    """Tokens of a block of the first product, blocks of a cluster, stages at most; tokens and
    columns of a block of the second, stages at most, and whether its warpgroups take turns; None:
    where a block has several tiles, or 64 tokens."""

    down_tokens: int
    blocks: int
    down_stages: int
    up_tokens: int
    up_columns: int
    up_stages: int
    turns: bool | None = None


def form_of(n: Operands, device: Device) -> Pair:
    """What was the fastest on an H200: 64 tokens a block where that gives most multiprocessors one
    in each product, 128 where weights are so large that reading them twice takes longer."""
    small = n.tokens <= 64 or (n.tokens <= 128 and n.columns <= _COLUMNS)
    tokens = 64 if small or n.rank <= _SHORT_RANK else 128
    tiles = ceil_div(n.tokens, tokens) * ceil_div(n.rank, _DEPTH)
    blocks = next((b for b in (8, 4, 2) if b * tiles <= device.multiprocessors), 1)
    if small:
        return Pair(tokens, blocks, 8, tokens, 64, 8)
    return Pair(tokens, blocks, 6 if tokens == 64 else 8, tokens, 128, 4)


def _fastest(n: Operands, device: Device) -> bool:
    """As measured on an H200."""
    weights = n.rank * (n.model + n.columns) * n.size
    if n.tokens <= 8 or n.rank <= 128 or weights < _WEIGHTS:
        return False
    if n.tokens <= 16:
        return weights <= 2 * _WEIGHTS or decode(n, device) is None
    if n.tokens <= 128:
        return True
    if n.norm:
        return n.tokens <= 256
    return n.rank <= _SHORT_RANK and n.tokens <= 512 and n.model >= 4096


def pair(n: Operands, device: Device, asked: bool = False, form: Pair | None = None) -> Plan | None:
    """mla_kv_pair_down and mla_kv_pair_up, or None where they do not fit.

    Args:
        asked: also where other designs are faster.
        form: instead of the one that is chosen.
    """
    if device.capability[0] != 9 or n.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not n.rank or n.rank % 8 or n.rank > _RANK or not n.model:
        return None
    if n.norm and n.dtype != torch.bfloat16:
        return None  # latents before their norm may be too large for float16
    maps = weight_maps(n, _DEPTH)
    if maps is None or not n.mapped or not all(side.out_aligned(n.size) for side in n.sides()):
        return None
    if not asked and not _fastest(n, device):
        return None
    form = form or form_of(n, device)
    kind = C_TYPES[n.dtype]
    # The first product.
    token_tiles, rank_tiles = ceil_div(n.tokens, form.down_tokens), ceil_div(n.rank, _DEPTH)
    stage = (form.down_tokens + 64) * _DEPTH * 2
    steps = ceil_div(ceil_div(n.model, _DEPTH), form.blocks)
    stages = min(steps, form.down_stages, _SHARED_LIMIT // stage)
    flags = ", ".join(str(f).lower() for f in (n.down.along_depth, n.norm))
    name = f"mla_kv_pair_down<{kind}, {form.down_tokens}, {form.blocks}, {stages}, {flags}>"
    x_map = Map(
        "hidden", (n.model, n.tokens), (n.hidden.inner_stride * n.size,), (64, form.down_tokens)
    )
    squares = "squares" if n.norm else None
    down = Launch(
        "kernel_pair.cu", name,
        (
            x_map, tensor_map("w_down", n.down, n.size, _DEPTH), "latent",
            "norm_weight" if n.norm else None, squares, n.tokens, n.model, n.rank, token_tiles,
        ),
        token_tiles * rank_tiles * form.blocks, 2 * form.down_tokens + 32,
        max(stages * stage, form.down_tokens * 72 * 4) + 1024, cluster=form.blocks,
    )  # fmt: skip
    # The second.
    counts = tile_counts(n.tokens, n.sides(), (form.up_tokens, form.up_columns))
    groups = max(1, min(counts[1] + counts[2], device.multiprocessors // counts[0]))
    latents, staged = rank_tiles * form.up_tokens * 128, 8 * 16 * form.up_columns * 2
    stage = form.up_columns * _DEPTH * 2
    total = rank_tiles * ceil_div(counts[1] + counts[2], groups)
    stages = min(total, form.up_stages, (_SHARED_LIMIT - latents - staged - 1024) // stage)
    if stages < min(2, total):
        return None
    turns = form.turns
    if turns is None:
        turns = form.up_tokens == 64 or counts[1] + counts[2] > groups
    flags = ", ".join(str(f).lower() for f in (turns, n.up[0].along_depth, n.norm))
    threads = 320 if form.up_tokens == 64 else 384
    name = (
        f"mla_kv_pair_up<{kind}, {form.up_tokens}, {form.up_columns}, {rank_tiles}, {stages}, "
        f"{flags}, {threads}>"
    )
    sizes = packed_sizes(n.hidden, n.rank, n.rank, n.sides(), counts, n.size, n.k_pe)
    x_map = Map("latent", (n.rank, n.tokens), (n.rank * n.size,), (64, form.up_tokens))
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    args = (
        x_map, *maps[0], *outs, "k_pe" if n.rope else None, sizes, *maps[1], squares, rank_tiles,
        n.rank, float(n.epsilon), groups,
    )  # fmt: skip
    up = Launch(
        "kernel_pair.cu", name, args, groups * counts[0], threads,
        latents + staged + stages * stage + 1024,
    )  # fmt: skip
    scratch = [("latent", n.tokens * n.rank, n.dtype)]
    if n.norm:
        scratch.append(("squares", rank_tiles * n.tokens, torch.float32))
    why = "two launches of wgmma, the weights of the second on their way during the first"
    return Plan("pair", (down, up), tuple(scratch), why)
