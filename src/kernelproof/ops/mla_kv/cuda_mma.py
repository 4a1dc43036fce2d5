"""The designs of mla_kv on tensor cores of any generation: tiles of mma.sync (kernel_mma.cu)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernelproof.ops.mla_kv.cuda_operands import (
    C_TYPES,
    NO_SIDE,
    Operands,
    Rows,
    Side,
    down_side,
    packed_sizes,
)
from kernelproof.ops.mla_kv.cuda_steps import (
    Device,
    Launch,
    Library,
    Plan,
    ceil_div,
    latent_launch,
    latent_rows,
    operand_names,
    splits_of,
    tile_counts,
)


class Tile(NamedTuple):
    """BM, BN, BK, STAGES, WM and WN of mla_kv_mma, and blocks that fit on a multiprocessor."""

    tokens: int
    columns: int
    depth: int
    stages: int
    warp_tokens: int
    warp_columns: int
    resident: int = 1

    @property
    def threads(self) -> int:
        return self.tokens // self.warp_tokens * (self.columns // self.warp_columns) * 32


TILES_16 = (
    Tile(128, 128, 64, 3, 64, 32, 2),
    Tile(64, 128, 64, 3, 32, 32, 2),
    Tile(32, 64, 64, 4, 16, 32, 3),
    Tile(16, 64, 64, 4, 16, 16, 4),
)
TILES_32 = (
    Tile(128, 128, 32, 3, 64, 32, 1),
    Tile(128, 64, 32, 3, 32, 32, 2),
    Tile(64, 64, 32, 3, 32, 16, 2),
    Tile(32, 64, 32, 4, 16, 32, 3),
    Tile(16, 64, 32, 4, 16, 16, 4),
)


BLOCK_TILES_16 = (
    Tile(128, 128, 32, 3, 64, 32, 1),
    Tile(64, 128, 32, 3, 32, 32, 2),
    Tile(32, 64, 64, 3, 16, 32, 2),
    Tile(16, 64, 64, 4, 16, 16, 3),
)
BLOCK_TILES_32 = (
    Tile(64, 64, 32, 3, 32, 16, 2),
    Tile(32, 64, 32, 3, 16, 32, 2),
    Tile(16, 64, 32, 4, 16, 16, 3),
)
_BLOCK_SHARED_LIMIT = 200 * 1024


# Tokens from which the largest tile is the fastest whatever the columns, and blocks for each
# multiprocessor below which a smaller one is.
_MANY_TOKENS, _ENOUGH_BLOCKS = 2048, 0.9


# Terms below which the largest tile of float32, one a multiprocessor, ends before it is under way.
_DEEP_ENOUGH = 256


def choose_tile(
    tiles: tuple[Tile, ...], tokens: int, columns: int, device: Device, depth: int = 0
) -> Tile:
    """The first tile of which there are enough to fill the device, else the smallest.

    Args:
        depth: terms of sums that may be split over blocks; 0 where they may not.
    """
    for tile in tiles:
        blocks = ceil_div(tokens, tile.tokens) * ceil_div(columns, tile.columns)
        blocks *= max(1, depth // (16 * tile.depth))
        wasteful = 4 * columns < 3 * tile.columns and tile != tiles[-1]
        if tokens <= tile.tokens // 2 or wasteful:
            continue
        if tokens >= _MANY_TOKENS or blocks >= _ENOUGH_BLOCKS * device.multiprocessors:
            return tile
    return tiles[-1]


class Product(NamedTuple):
    """One product of a chain: its operands by name, and what `packed_sizes` takes."""

    source: str
    rows: Rows
    weights: tuple[str, str]
    outs: tuple[str, str]
    sides: tuple[Side, Side]
    depth: int
    k_pe: Rows | None = None
    early: bool = False


def _mma_launch(
    n: Operands, product: Product, tile: Tile, splits: int, split_depth: int, out: torch.dtype
) -> Launch:
    """mla_kv_mma. Weights that lie in neither order are read element by element."""
    weights = [n.down] if product.weights[0] == "w_down" else list(n.up)
    k_major = all(w.along_depth for w in weights)
    wide_w = all(w.wide(n.size) and w.along_depth == k_major for w in weights)
    wide_x = product.rows.wide(n.size)
    terms = 3 if n.dtype == torch.float32 and n.accuracy == "strict" else 1
    flags = ", ".join(str(f).lower() for f in (k_major, wide_x, wide_w, product.early))
    name = (
        f"mla_kv_mma<{C_TYPES[n.dtype]}, {terms}, {', '.join(map(str, tile[:6]))}, {flags}, "
        f"{C_TYPES[out]}>"
    )
    pad = 16 // n.size
    w_elements = tile.columns * (tile.depth + pad) if k_major else tile.depth * (tile.columns + 8)
    stage = (tile.tokens * (tile.depth + pad) + w_elements) * n.size
    staged = tile.tokens * (tile.columns + 16 // out.itemsize) * out.itemsize
    counts = tile_counts(product.rows.number, product.sides, tile)
    sizes = packed_sizes(
        product.rows, product.depth, split_depth, product.sides, counts, out.itemsize, product.k_pe
    )
    args = (
        product.source, *product.weights, *product.outs,
        "k_pe" if product.k_pe is not None else None, sizes,
    )  # fmt: skip
    grid = counts[0] * (counts[1] + counts[2]) * splits
    return Launch("kernel_mma.cu", name, args, grid, tile.threads, max(tile.stages * stage, staged))


def products(n: Operands) -> tuple[Product, Product]:
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    down = Product(
        "hidden", n.hidden, ("w_down", "w_down"), ("latent", "latent"), (down_side(n), NO_SIDE),
        n.model,
    )  # fmt: skip
    up = Product(
        "latent", latent_rows(n), ("w_up_k", "w_up_v"), outs, n.sides(), n.rank, n.k_pe,
        early=True,
    )  # fmt: skip
    return down, up


def mma(
    n: Operands,
    device: Device,
    down_tile: Tile | None = None,
    up_tile: Tile | None = None,
    splits: int | None = None,
) -> Plan | None:
    """Two launches of mla_kv_mma, with mla_kv_latent between them for split sums or the norm.

    Args:
        down_tile, up_tile, splits: instead of those that are chosen.
    """
    if n.dtype == torch.float64 or not n.rank or device.capability < (8, 0):
        return None
    down, up = products(n)
    tiles: tuple[Tile, ...] = TILES_32 if n.dtype == torch.float32 else TILES_16
    if not all(part.wide(n.size) for part in (n.hidden, n.down, *n.up)):
        tiles = tuple(
            t for t in tiles if t.tokens <= 64
        )  # the values of a larger tile on their way do not fit into registers
    tile = down_tile or choose_tile(tiles, n.tokens, n.rank, device, n.model)
    blocks = ceil_div(n.tokens, tile.tokens) * ceil_div(n.rank, tile.columns)
    if splits is None:
        wanted = device.multiprocessors * min(tile.resident, 2)
        splits, split_depth = splits_of(blocks, n.model, wanted, tile.depth, 4)
    else:
        split_depth = ceil_div(ceil_div(n.model, splits), tile.depth) * tile.depth
        splits = ceil_div(n.model, split_depth)
    count = n.tokens * n.rank
    scratch = [("latent", count, n.dtype)]
    launches: list[Launch | Library]
    if splits > 1 or n.norm:
        down = down._replace(outs=("partial", "partial"))
        scratch.append(("partial", splits * count, torch.float32))
        launches = [
            _mma_launch(n, down, tile, splits, split_depth, torch.float32),
            latent_launch(n, splits, n.dtype),
        ]
    else:
        launches = [_mma_launch(n, down, tile, splits, split_depth, n.dtype)]
    if n.dtype == torch.float32 and n.rank < _DEEP_ENOUGH:
        tiles = tuple(t for t in tiles if t.tokens * t.columns < 128 * 128)
    tile = up_tile or choose_tile(tiles, n.tokens, n.columns, device)
    launches.append(_mma_launch(n, up, tile, 1, n.rank, n.dtype))
    return Plan("mma", tuple(launches), tuple(scratch), "one tensor-core product after the other")


def block_plan(n: Operands, device: Device, tile: Tile | None = None) -> Plan | None:
    """mla_kv_block, or None where its latents do not fit into shared memory."""
    if n.dtype == torch.float64 or not n.rank or device.capability < (8, 0):
        return None
    k_major = n.down.along_depth
    wide = [
        all(w.wide(n.size) and w.along_depth == k_major for w in weights)
        for weights in ((n.down,), n.up)
    ]
    wide_x = n.hidden.wide(n.size)
    if tile is None:
        tiles = BLOCK_TILES_32 if n.dtype == torch.float32 else BLOCK_TILES_16
        tile = choose_tile(tiles, n.tokens, 1, device)
    pad = 16 // n.size
    pitch = ceil_div(n.rank, tile.columns) * tile.columns + pad
    w_elements = tile.columns * (tile.depth + pad) if k_major else tile.depth * (tile.columns + 8)
    stage = tile.tokens * (tile.depth + pad) + w_elements
    elements = tile.stages * stage + tile.tokens * (tile.columns + pad + pitch)
    if elements * n.size > _BLOCK_SHARED_LIMIT:
        return None
    counts = tile_counts(n.tokens, n.sides(), tile)
    column_tiles = counts[1] + counts[2]
    chunks = max(1, min(column_tiles, device.multiprocessors * tile.resident // counts[0]))
    per_chunk = ceil_div(column_tiles, chunks)
    grid = counts[0] * ceil_div(column_tiles, per_chunk)
    terms = 3 if n.dtype == torch.float32 and n.accuracy == "strict" else 1
    flags = ", ".join(str(f).lower() for f in (k_major, wide_x, *wide))
    name = f"mla_kv_block<{C_TYPES[n.dtype]}, {terms}, {', '.join(map(str, tile[:6]))}, {flags}>"
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    args = (
        *operand_names(n), sizes, down_side(n).packed(), per_chunk, pitch, float(n.epsilon),
    )  # fmt: skip
    launch = Launch("kernel_mma.cu", name, args, grid, tile.threads, elements * n.size)
    return Plan("block", (launch,), (), "both products in one launch, latents in shared memory")
