"""The design of mla_kv whose latents stay in the shared memory of clusters (kernel_cluster.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_operands import C_TYPES, Operands, down_side, packed_sizes
from kernelproof.ops.mla_kv.cuda_parts import parts
from kernelproof.ops.mla_kv.cuda_steps import Device, Launch, Plan, ceil_div, operand_names

_BLOCKS = 8  # kBlocks of kernel_cluster.cu
_SHARED_LIMIT = 227 * 1024
_RANK, _COLUMNS = 512, 256  # of a tile at most: registers
_STATIC_BYTES = 64


class Tile(NamedTuple):
    """Tokens of a cluster; columns of w_down for a warp, of w_up for a block and for a warp."""

    tokens: int
    warp_rank: int
    columns: int
    warp_columns: int


def tile_of(n: Operands, tokens: int) -> Tile | None:
    """Columns so that every block has one tile of one weight, or None where they are too many."""
    columns = 16 * ceil_div(ceil_div(n.columns, _BLOCKS), 16)
    while sum(ceil_div(up.columns, columns) for up in n.up) > _BLOCKS:
        columns += 16
        if columns > _COLUMNS:
            return None
    if n.rank > _RANK:
        return None
    warp_rank = 16 if n.rank <= 128 else 32 if n.rank <= 256 else 64
    if columns > 128:
        columns = 32 * ceil_div(columns, 32)
    return Tile(tokens, warp_rank, columns, 16 if columns <= 128 else 32)


def shared_bytes(n: Operands, tile: Tile) -> int:
    """As ClusterShape of kernel_cluster.cu."""
    step, pad = 32 // n.size, 16 // n.size
    share = step * ceil_div(ceil_div(n.model, step), _BLOCKS)
    rank = tile.warp_rank * ceil_div(n.rank, tile.warp_rank)
    depth = step * ceil_div(n.rank, step)
    down = rank * (share + pad) if n.down.along_depth else share * (rank + 8)
    up = tile.columns * (depth + pad) if n.up[0].along_depth else depth * (tile.columns + 8)
    first = max(
        (tile.tokens * (share + pad) + down) * n.size,
        tile.tokens * (rank + 8) * 4,
        tile.tokens * (tile.columns + pad) * n.size,
    )
    return first + (up + tile.tokens * (depth + pad)) * n.size


def threads(n: Operands, tile: Tile) -> int:
    """A warp for every part of a tile; eight at least, which share the exchange."""
    rows = tile.tokens // min(tile.tokens, 32)
    down = ceil_div(n.rank, tile.warp_rank)
    return 32 * max(8, rows * down, rows * (tile.columns // tile.warp_columns))


def cluster(
    n: Operands, device: Device, asked: bool = False, tokens: int | None = None
) -> Plan | None:
    """mla_kv_cluster, or None where it does not fit.

    Args:
        asked: also where other designs are faster.
        tokens: of a cluster, 16, 32 or 64, instead of those that are chosen.
    """
    if device.capability[0] != 9 or n.dtype == torch.float64 or not n.rank or not n.model:
        return None
    k, v = n.up
    if k.along_depth != v.along_depth or not k.columns or not v.columns:
        return None
    if tokens is None:
        tokens = next((t for t in (16, 32) if fills(n, device, t)), 64)
    tile = tile_of(n, tokens)
    if tile is None or shared_bytes(n, tile) > _SHARED_LIMIT - _STATIC_BYTES:
        return None
    if not asked and not _fastest(n, device):
        return None
    terms = 3 if n.dtype == torch.float32 and n.accuracy == "strict" else 1
    wide = (n.hidden.wide(n.size), n.down.wide(n.size), k.wide(n.size) and v.wide(n.size))
    flags = ", ".join(str(f).lower() for f in (n.down.along_depth, k.along_depth, *wide, n.norm))
    name = (
        f"mla_kv_cluster<{C_TYPES[n.dtype]}, {terms}, {n.model}, {n.rank}, "
        f"{', '.join(map(str, tile))}, {flags}, {threads(n, tile)}>"
    )
    clusters = ceil_div(n.tokens, tokens)
    counts = clusters, ceil_div(k.columns, tile.columns), ceil_div(v.columns, tile.columns)
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    args = (*operand_names(n), sizes, down_side(n).packed(), float(n.epsilon))
    launch = Launch(
        "kernel_cluster.cu", name, args, _BLOCKS * clusters, threads(n, tile),
        shared_bytes(n, tile), cluster=_BLOCKS,
    )  # fmt: skip
    why = "small weights: one launch, clusters exchange shares of latents through shared memory"
    return Plan("cluster", (launch,), (), why)


def _fastest(n: Operands, device: Device) -> bool:
    """As measured on an H200: float32, a long sum over so little that a matrix library has too few
    blocks."""
    weights = n.rank * (n.model + n.columns) * n.size
    if n.size == 2 or not 128 <= n.tokens <= 512 or n.model < 512 or weights > 1 << 20:
        return False
    return parts(n, device) is None and fills(n, device, 16)


def fills(n: Operands, device: Device, tokens: int) -> bool:
    """Whether all clusters of so many tokens run at the same time."""
    tile = tile_of(n, tokens)
    if tile is None:
        return False
    resident = max(1, min(2, _SHARED_LIMIT // (shared_bytes(n, tile) + 1024)))
    room = device.multiprocessors // 16 * 16 // _BLOCKS * resident
    return ceil_div(n.tokens, tokens) <= room
