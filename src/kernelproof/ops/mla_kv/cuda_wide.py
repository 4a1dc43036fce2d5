"""The design of mla_kv for some 500 tokens of large models on sm_90 (kernel_wide.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_hopper import weight_maps
from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Library, Map, Plan, ceil_div

_DEPTH, _COLUMNS, _THREADS = 64, 128, 320  # of kernel_wide.cu
_W_SLOTS = 8
_SHARED = (_W_SLOTS * _COLUMNS + 3 * 256) * _DEPTH * 2 + 1024
_MOST_TOKENS, _MOST_RANK = 512, 1536


class Range(NamedTuple):
    """Problems for which this design is taken: tokens from and to; at least so many elements of the
    model axis, and columns of keys and values together."""

    tokens: tuple[int, int]
    model: int
    columns: int


# Where it is the fastest on an H200: measured at 512 tokens, of which fewer leave the second tile
# of 256 at least three quarters full.
FASTEST = Range((449, 512), 7168, 32768)


class Wide(NamedTuple):
    """Template parameters of mla_kv_wide."""

    tokens: int
    w_slots: int = _W_SLOTS
    x_slots: int = 0  # 0: as many as fit


def form_of(n: Operands, device: Device) -> Wide:
    """The most tokens a block that are needed, and leave few multiprocessors idle."""
    tiles = sum(ceil_div(side.columns, _COLUMNS) for side in n.sides())
    for tokens in (256, 128, 64):
        busy = 4 * tiles * ceil_div(n.tokens, tokens) >= 3 * device.multiprocessors
        fits = tokens // 64 <= ceil_div(n.rank, _DEPTH)  # results leave through slots of weights
        if n.tokens > tokens // 2 and busy and fits:
            break
    return Wide(tokens)


def _fastest(n: Operands) -> bool:
    (least, most), model, columns = FASTEST
    enough = n.model >= model and sum(side.columns for side in n.sides()) >= columns
    return least <= n.tokens <= most and enough


def wide(n: Operands, device: Device, asked: bool = False, form: Wide | None = None) -> Plan | None:
    """The library's first product and mla_kv_wide, or None where they do not fit.

    Args:
        asked: also where other designs are faster.
        form: instead of the one that is chosen.
    """
    if device.capability[0] != 9 or n.dtype not in (torch.float16, torch.bfloat16):
        return None
    if not n.rank or n.rank % 8 or n.rank > _MOST_RANK or not n.model or n.norm or n.rope:
        return None
    if n.tokens > _MOST_TOKENS or not (asked or _fastest(n)):
        return None
    maps = weight_maps(n, _DEPTH)
    if maps is None or not n.mapped or not all(side.out_aligned(n.size) for side in n.sides()):
        return None
    form = form or form_of(n, device)
    steps = (Library("hidden", "w_down", "latent"), _second(n, device, form, *maps))
    why = "the second product reads each weight once, and has it before the latents are there"
    return Plan("wide", steps, (("latent", n.tokens * n.rank, n.dtype),), why)


def _second(
    n: Operands, device: Device, form: Wide, maps: tuple[Map, Map], folds: tuple[int, int]
) -> Launch:
    steps, sides = ceil_div(n.rank, _DEPTH), n.sides()
    tiles = [ceil_div(side.columns, _COLUMNS) for side in sides]
    items = sum(tiles) * ceil_div(n.tokens, form.tokens)
    grid = ceil_div(items, ceil_div(items, device.multiprocessors))  # equally many items for each
    x_slots = form.x_slots or 3 * 256 // form.tokens
    name = (
        f"mla_kv_wide<{C_TYPES[n.dtype]}, {form.tokens}, {steps}, {form.w_slots}, {x_slots}, "
        f"{str(n.up[0].along_depth).lower()}>"
    )
    stacked = n.layout == "stacked"
    latent_map = Map("latent", (n.rank, n.tokens), (n.rank * n.size,), (64, form.tokens))
    outs = [
        Map(
            "out0" if stacked else f"out{i}", (side.columns, 2 if stacked else 1, n.tokens),
            (side.columns * n.size, side.out_token * n.size), (64, 1, 64),
        )
        for i, side in enumerate(sides)
    ]  # fmt: skip
    sizes = (n.tokens, *tiles, *folds, int(stacked))
    args: tuple[int | Map, ...] = (latent_map, *maps, *outs, *sizes)
    return Launch("kernel_wide.cu", name, args, grid, _THREADS, _SHARED)
