"""The design of mla_kv for a few tokens of any type and layout: one cooperative launch of fp32
multiply-adds (kernel_stream.cu)."""

from __future__ import annotations

import torch

from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, down_side, packed_sizes
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Plan, ceil_div, tile_counts

_THREADS = 256  # kThreads of kernel_stream.cu
_TOKENS = 16
_SHARED_LIMIT = 200 * 1024
# Registers of a thread that may hold weights on their way, of w_down and of w_up.
_DOWN_WORDS, _UP_WORDS = 32, 64


def stream(n: Operands, device: Device) -> Plan | None:
    """mla_kv_stream, or None where it does not fit."""
    if n.dtype == torch.float64 or n.tokens > _TOKENS or not n.rank or not n.model:
        return None
    if device.capability < (8, 0):
        return None
    weights = (n.down, *n.up)
    wide = n.rank % 4 == 0 and all(
        w.wide(n.size) and not w.along_depth and w.column == 1 and w.width % 4 == 0 for w in weights
    )
    width = 4 if wide else 1
    words = max(1, width * n.size // 4)
    tokens = next(t for t in (1, 2, 4, 8, 16) if t >= n.tokens)
    down_slots = _slots(n.rank, width, device.multiprocessors // 8)
    groups = ceil_div(n.rank, down_slots * width)
    shares = max(
        1, min(device.multiprocessors // groups, ceil_div(n.model, _THREADS // down_slots))
    )
    down_rows = ceil_div(n.model, shares)
    shares = ceil_div(n.model, down_rows)
    most = max(up.columns for up in n.up)
    up_slots = _slots(most, width, int(0.45 * device.multiprocessors))
    tiles = tile_counts(n.tokens, n.sides(), (tokens, up_slots * width))
    grid = min(device.multiprocessors, max(groups * shares, tiles[1] + tiles[2]))
    two_steps = n.tokens > 1

    def rows_at_once(rows: int, slots: int, most: int) -> int:
        return max(1, min(ceil_div(rows, _THREADS // slots), most // words))

    flags = ", ".join(str(flag).lower() for flag in (two_steps, n.norm))
    name = (
        f"mla_kv_stream<{C_TYPES[n.dtype]}, {width}, {tokens}, {down_slots}, "
        f"{rows_at_once(down_rows, down_slots, _DOWN_WORDS)}, {up_slots}, "
        f"{rows_at_once(n.rank, up_slots, _UP_WORDS)}, {flags}>"
    )
    pitch = tokens + 4 if tokens >= 8 else tokens
    shared = 4 * (tokens * _THREADS * width + pitch * (down_rows + n.rank))
    if shared > _SHARED_LIMIT:
        return None
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), tiles, n.size, n.k_pe)
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    args = (
        "hidden", "w_down", "w_up_k", "w_up_v", "norm_weight" if n.norm else None,
        "k_pe" if n.rope else None, *outs, "partial", "summed", "barrier", sizes,
        down_side(n).packed(), down_rows, shares, float(n.epsilon),
    )  # fmt: skip
    launch = Launch("kernel_stream.cu", name, args, grid, _THREADS, shared, True)
    scratch = (
        ("partial", shares * n.tokens * n.rank, torch.float32),
        ("summed", tokens * n.rank, torch.float32),
    )
    return Plan("stream", (launch,), scratch, "few tokens: one launch, w_up is read ahead")


def _slots(columns: int, width: int, tiles: int) -> int:
    """Threads side by side over columns: the most of which there are at least ``tiles`` tiles."""
    for slots in (64, 32, 16):
        if ceil_div(columns, slots * width) >= tiles:
            return slots
    return 8
