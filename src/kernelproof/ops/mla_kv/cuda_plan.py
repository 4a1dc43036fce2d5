"""Which kernels run for a call of mla_kv on CUDA, and with which arguments."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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

# BM, BN, BK, TM, TN of the tiled kernels: see `Tile` in kernel.cu.
_SMALL_TILE = (16, 64, 32, 1, 4)
_LARGE_TILE = (64, 64, 16, 4, 4)
_TILE_THREADS = 256
# Bytes of shared memory that every GPU from sm_80 on grants twice per multiprocessor.
_FUSED_SHARED_LIMIT = 80 * 1024
_STATIC_SHARED_LIMIT = 48 * 1024
# Multiply-adds above which the larger tiles of several launches win over one fused launch.
_FUSED_WORK = 1 << 26
# A further launch costs about as much as this many steps of a tile's loop.
_LAUNCH_STEPS = 3
_REGISTER_TOKENS_PER_SM = 8
# Quads of weights a thread can hold without spilling.
_REGISTER_QUADS = 24
_MAX_BLOCKS = 2**31 - 1
_LATENT_THREADS = 128


class Launch(NamedTuple):
    """One launch of ``name`` in the file ``source``. A string among ``args`` names a tensor: an
    operand (hidden, w_down, w_up_k, w_up_v, norm_weight, k_pe), an output (out0, out1) or scratch;
    everything else is passed as it is."""

    source: str
    name: str
    args: tuple[str | int | float | bytes | None, ...]
    grid: int
    block: int
    shared: int = 0


class Plan(NamedTuple):
    """How to run one call. ``scratch``: tensors to allocate, as name, elements and dtype; ``why``:
    the reason for the design, in words."""

    design: str
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[str, int, torch.dtype], ...] = ()
    why: str = ""


class Device(NamedTuple):
    """What the choice depends on."""

    multiprocessors: int = 132
    capability: tuple[int, int] = (9, 0)


H200 = Device()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def tile_counts(tokens: int, sides: Sequence[Side], tile: Sequence[int]) -> tuple[int, int, int]:
    """Tiles of tokens, and of the columns of each side; ``tile``: tokens, columns, ..."""
    first, second = (ceil_div(side.columns, tile[1]) for side in sides)
    return ceil_div(tokens, tile[0]), first, second


# -- one launch, weights in registers --------------------------------------------------------------


def register_threads(model: int, rank: int, columns: int, tokens: int) -> int | None:
    """Block size for mla_kv_registers, or None where the weights do not fit into registers.

    The one with the fewest idle load slots; where equal, the one closest to 384 threads.
    """
    best: tuple[int, int, int] | None = None
    for threads in range(128, 513, 32):
        down_groups, up_groups = threads // (rank // 4), threads // (columns // 2)
        if down_groups == 0 or up_groups == 0:
            continue
        up_rows = 4 * ceil_div(ceil_div(rank, up_groups), 4)
        quads = ceil_div(model, down_groups) + up_rows
        partials = max(down_groups * (tokens * rank + 4), up_groups * tokens * 2 * columns)
        if quads > _REGISTER_QUADS:
            continue
        if 4 * (4 * model + tokens * rank + partials) > _STATIC_SHARED_LIMIT:
            continue
        choice = (quads * threads, abs(threads - 384), threads)
        best = choice if best is None else min(best, choice)
    return None if best is None else best[2]


def _registers(n: Operands, device: Device) -> Plan | None:
    """mla_kv_registers for contiguous weights and tokens, or None where it does not fit."""
    k, v = n.up
    dense = all(
        w.aligned and w.merged and (w.row, w.column) == (w.columns, 1) for w in (n.down, k, v)
    )
    one_token_stride = n.hidden.inner == n.tokens or n.tokens == 1
    if n.dtype != torch.float32 or not n.plain() or not dense or k.columns != v.columns:
        return None
    if not one_token_stride or n.hidden.column != 1 or n.rank % 4 or k.columns % 4 or not n.rank:
        return None
    if not 0 < n.model <= 2048 or n.tokens > _REGISTER_TOKENS_PER_SM * device.multiprocessors:
        return None
    tokens = min(4, ceil_div(n.tokens, device.multiprocessors))
    threads = register_threads(n.model, n.rank, k.columns, tokens)
    if threads is None:
        return None
    name = f"mla_kv_registers<{n.model}, {n.rank}, {k.columns}, {tokens}, {threads}>"
    args = ("hidden", "w_down", "w_up_k", "w_up_v", "out0", n.tokens, n.hidden.inner_stride)
    launch = Launch("kernel.cu", name, args, ceil_div(n.tokens, tokens), threads)
    return Plan("registers", (launch,), (), "all weights fit into the registers of one block")


# -- one launch, latents in shared memory ----------------------------------------------------------


def splits_of(blocks: int, depth: int, wanted: int, step: int, least: int) -> tuple[int, int]:
    """Number of splits of a sum and their depth, so that ``blocks`` become about ``wanted`` blocks.

    Each split keeps at least ``least`` steps of ``step`` terms, which hide the latency of loads; a
    sum of less than four times that is not worth the launch that adds the parts.
    """
    splits = min(wanted // max(blocks, 1), depth // (least * step))
    if depth < 4 * least * step or splits < 2:
        return 1, max(depth, 1)
    split_depth = ceil_div(ceil_div(depth, splits), step) * step
    return ceil_div(depth, split_depth), split_depth


def _fused(n: Operands, device: Device, asked: bool) -> Plan | None:
    """mla_kv_fused, or None where it does not fit or, unless ``asked`` for, is slower."""
    rows, width, depth, _, _ = _SMALL_TILE
    item = 8 if n.dtype == torch.float64 else 4
    staging = 2 * depth * ((rows + 4) + (width + 4)) * item
    shared = staging + ceil_div(n.rank, depth) * depth * (rows + 4) * item
    work = n.tokens * n.rank * (n.model + n.columns)
    if shared > _FUSED_SHARED_LIMIT or (work > _FUSED_WORK and not asked):
        return None
    token_tiles = ceil_div(n.tokens, rows)
    counts = tile_counts(n.tokens, n.sides(), _SMALL_TILE)
    column_tiles = counts[1] + counts[2]
    # Splitting the columns over more blocks repeats the down-projection, which costs no time
    # while there are idle multiprocessors.
    chunks = max(1, min(column_tiles, device.multiprocessors // token_tiles))
    tiles = ceil_div(column_tiles, chunks)
    down_steps, up_steps = ceil_div(n.model, depth), ceil_div(n.rank, depth)
    steps = ceil_div(n.rank, width) * down_steps + tiles * up_steps
    blocks = token_tiles * ceil_div(n.rank, width)
    splits, split_depth = splits_of(blocks, n.model, device.multiprocessors, depth, 4)
    extra_launches = 1 if splits == 1 else 2
    others = split_depth // depth + up_steps + extra_launches * _LAUNCH_STEPS
    if not asked and steps > others:
        return None
    grid = token_tiles * ceil_div(column_tiles, tiles)
    name = f"mla_kv_fused<{C_TYPES[n.dtype]}, {', '.join(map(str, _SMALL_TILE))}>"
    sizes = packed_sizes(n.hidden, n.model, n.model, n.sides(), counts, n.size, n.k_pe)
    args = (
        *_all_args(n), sizes, down_side(n).packed(), tiles, float(n.epsilon),
    )  # fmt: skip
    launch = Launch("kernel.cu", name, args, grid, _TILE_THREADS, shared)
    return Plan("fused", (launch,), (), "a tile of latents stays in shared memory")


def _all_args(n: Operands) -> tuple[str | None, ...]:
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    norm = "norm_weight" if n.norm else None
    return ("hidden", "w_down", "w_up_k", "w_up_v", norm, "k_pe" if n.rope else None, *outs)


# -- a launch for each product ---------------------------------------------------------------------


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


_TILES_16 = (
    Tile(128, 128, 32, 4, 64, 32, 2),
    Tile(64, 128, 32, 4, 32, 32, 3),
    Tile(32, 64, 64, 4, 16, 32, 3),
    Tile(16, 64, 64, 4, 16, 16, 4),
)
_TILES_32 = (
    Tile(128, 128, 32, 3, 64, 32, 1),
    Tile(64, 64, 32, 3, 32, 16, 2),
    Tile(32, 64, 32, 4, 16, 32, 3),
    Tile(16, 64, 32, 4, 16, 16, 4),
)


def choose_tile(tiles: tuple[Tile, ...], tokens: int, columns: int, device: Device) -> Tile:
    """The first tile that fills the device once, else one as small as the tokens."""
    for tile in tiles:
        blocks = ceil_div(tokens, tile.tokens) * ceil_div(columns, tile.columns)
        if blocks >= device.multiprocessors and tokens > tile.tokens // 2:
            return tile
    for tile in tiles:
        if tokens > tile.tokens // 2:
            return tile
    return tiles[-1]


class _Product(NamedTuple):
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
    n: Operands, product: _Product, tile: Tile, splits: int, split_depth: int, out: torch.dtype
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


def _plain_launch(
    n: Operands, product: _Product, tile: tuple[int, ...], splits: int, split_depth: int,
    types: str, out_size: int,
) -> Launch:  # fmt: skip
    """mla_kv_product."""
    counts = tile_counts(product.rows.number, product.sides, tile)
    sizes = packed_sizes(
        product.rows, product.depth, split_depth, product.sides, counts, out_size, product.k_pe
    )
    args = (
        product.source, *product.weights, *product.outs,
        "k_pe" if product.k_pe is not None else None, sizes,
    )  # fmt: skip
    name = f"mla_kv_product<{types}, {', '.join(map(str, tile))}>"
    grid = counts[0] * (counts[1] + counts[2]) * splits
    return Launch("kernel.cu", name, args, grid, _TILE_THREADS)


def latent_launch(n: Operands, splits: int, latent: torch.dtype) -> Launch:
    """mla_kv_latent: "partial" to "latent"."""
    total = "double" if n.dtype == torch.float64 else "float"
    name = f"mla_kv_latent<{C_TYPES[n.dtype]}, {C_TYPES[latent]}, {total}, {_LATENT_THREADS}>"
    norm = "norm_weight" if n.norm else None
    args = ("partial", norm, "latent", n.tokens, n.rank, splits, float(n.epsilon))
    shared = n.rank * (8 if total == "double" else 4)
    return Launch("kernel_mma.cu", name, args, n.tokens, _LATENT_THREADS, shared)


def latent_rows(n: Operands) -> Rows:
    return Rows(n.tokens, n.tokens, 0, n.rank, 1, n.rank, True)


def _products(n: Operands) -> tuple[_Product, _Product]:
    outs = ("out0", "out0" if n.layout == "stacked" else "out1")
    down = _Product(
        "hidden", n.hidden, ("w_down", "w_down"), ("latent", "latent"), (down_side(n), NO_SIDE),
        n.model,
    )  # fmt: skip
    up = _Product(
        "latent", latent_rows(n), ("w_up_k", "w_up_v"), outs, n.sides(), n.rank, n.k_pe,
        early=True,
    )  # fmt: skip
    return down, up


def _mma(n: Operands, device: Device) -> Plan | None:
    """Two launches of mla_kv_mma, with mla_kv_latent between them for split sums or the norm."""
    if n.dtype == torch.float64 or not n.rank or device.capability < (8, 0):
        return None
    down, up = _products(n)
    tiles = _TILES_32 if n.dtype == torch.float32 else _TILES_16
    tile = choose_tile(tiles, n.tokens, n.rank, device)
    blocks = ceil_div(n.tokens, tile.tokens) * ceil_div(n.rank, tile.columns)
    wanted = device.multiprocessors * min(tile.resident, 2)
    splits, split_depth = splits_of(blocks, n.model, wanted, tile.depth, 4)
    count = n.tokens * n.rank
    scratch = [("latent", count, n.dtype)]
    launches = []
    if splits > 1 or n.norm:
        down = down._replace(outs=("partial", "partial"))
        scratch.append(("partial", splits * count, torch.float32))
        launches = [
            _mma_launch(n, down, tile, splits, split_depth, torch.float32),
            latent_launch(n, splits, n.dtype),
        ]
    else:
        launches = [_mma_launch(n, down, tile, splits, split_depth, n.dtype)]
    tile = choose_tile(tiles, n.tokens, n.columns, device)
    launches.append(_mma_launch(n, up, tile, 1, n.rank, n.dtype))
    return Plan("mma", tuple(launches), tuple(scratch), "one tensor-core product after the other")


def _product(n: Operands, device: Device) -> Plan:
    """Two launches of mla_kv_product, with mla_kv_latent between them."""
    value, total = C_TYPES[n.dtype], "double" if n.dtype == torch.float64 else "float"
    sum_type = torch.float64 if n.dtype == torch.float64 else torch.float32
    down, up = _products(n)

    def tile_of(columns: int) -> tuple[int, ...]:
        large = ceil_div(n.tokens, _LARGE_TILE[0]) * ceil_div(columns, _LARGE_TILE[1])
        return _LARGE_TILE if large >= device.multiprocessors else _SMALL_TILE

    launches: list[Launch] = []
    count = n.tokens * n.rank
    scratch = [("latent", count, sum_type)]
    if n.rank:
        tile, splits, split_depth = tile_of(n.rank), 1, max(n.model, 1)
        if tile == _SMALL_TILE:
            blocks = ceil_div(n.tokens, tile[0]) * ceil_div(n.rank, tile[1])
            splits, split_depth = splits_of(blocks, n.model, device.multiprocessors, tile[2], 4)
        if splits > 1 or n.norm:
            down = down._replace(outs=("partial", "partial"))
            scratch.append(("partial", splits * count, sum_type))
        types = f"{value}, {value}, {total}"
        size = sum_type.itemsize
        launches.append(_plain_launch(n, down, tile, splits, split_depth, types, size))
        if splits > 1 or n.norm:
            launches.append(latent_launch(n, splits, sum_type))
    tile = tile_of(n.columns)
    types = f"{total}, {value}, {value}"
    launches.append(_plain_launch(n, up, tile, 1, max(n.rank, 1), types, n.size))
    return Plan("product", tuple(launches), tuple(scratch), "one tiled product after the other")


DESIGNS = ("registers", "fused", "mma", "product")


@functools.lru_cache(maxsize=1024)
def plan(n: Operands, device: Device = H200, design: str | None = None) -> Plan:
    """The launches for one call with at least one token and one column.

    Args:
        design: one of `DESIGNS` instead of the best one that fits.

    Raises:
        ValueError: the design asked for does not fit, or the problem needs too many blocks.
    """
    chosen: Plan | None = None
    for name in DESIGNS if design is None else (design,):
        if name == "registers":
            chosen = _registers(n, device)
        elif name == "fused":
            chosen = _fused(n, device, design is not None)
        elif name == "mma":
            chosen = _mma(n, device)
        elif name == "product":
            chosen = _product(n, device)
        if chosen is not None:
            break
    if chosen is None:
        raise ValueError(
            f"mla_kv: the design {design!r} does not fit {n}; there are {', '.join(DESIGNS)}, and "
            "None takes the best one that fits"
        )
    if any(launch.grid > _MAX_BLOCKS for launch in chosen.launches):
        raise ValueError(
            f"mla_kv: {n.tokens} tokens with {n.columns} columns need more than {_MAX_BLOCKS} "
            "blocks; split the tokens over several calls"
        )
    return chosen
