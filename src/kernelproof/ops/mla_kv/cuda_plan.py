"""Which kernels run for a call of mla_kv on CUDA, and with which arguments."""

from __future__ import annotations

import functools

import torch

from kernelproof.ops.mla_kv.cuda_cluster import cluster
from kernelproof.ops.mla_kv.cuda_few import few
from kernelproof.ops.mla_kv.cuda_hopper import decode, prefill
from kernelproof.ops.mla_kv.cuda_mma import Product, block_plan, mma, products
from kernelproof.ops.mla_kv.cuda_narrow import narrow
from kernelproof.ops.mla_kv.cuda_operands import (
    C_TYPES,
    Operands,
    down_side,
    packed_sizes,
)
from kernelproof.ops.mla_kv.cuda_pair import pair
from kernelproof.ops.mla_kv.cuda_parts import parts
from kernelproof.ops.mla_kv.cuda_small import small
from kernelproof.ops.mla_kv.cuda_split import split
from kernelproof.ops.mla_kv.cuda_steps import (
    H200,
    Device,
    Launch,
    Library,
    Plan,
    ceil_div,
    latent_launch,
    operand_names,
    splits_of,
    tile_counts,
)
from kernelproof.ops.mla_kv.cuda_thin import thin
from kernelproof.ops.mla_kv.cuda_wide import wide

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
# Fewer tokens have their norm in the sum of mla_kv_mma's parts, without a launch of its own.
_NORM_TOKENS = 1024


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
        *operand_names(n), sizes, down_side(n).packed(), tiles, float(n.epsilon),
    )  # fmt: skip
    launch = Launch("kernel.cu", name, args, grid, _TILE_THREADS, shared)
    return Plan("fused", (launch,), (), "a tile of latents stays in shared memory")


# -- a launch for each product ---------------------------------------------------------------------


def _plain_launch(
    n: Operands, product: Product, tile: tuple[int, ...], splits: int, split_depth: int,
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


def _product(n: Operands, device: Device) -> Plan:
    """Two launches of mla_kv_product, with mla_kv_latent between them."""
    value, total = C_TYPES[n.dtype], "double" if n.dtype == torch.float64 else "float"
    sum_type = torch.float64 if n.dtype == torch.float64 else torch.float32
    down, up = products(n)

    def tile_of(columns: int) -> tuple[int, ...]:
        large = ceil_div(n.tokens, _LARGE_TILE[0]) * ceil_div(columns, _LARGE_TILE[1])
        return _LARGE_TILE if large >= device.multiprocessors else _SMALL_TILE

    launches: list[Launch | Library] = []
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


def library(n: Operands, device: Device) -> Plan | None:
    """The matrix library for all products, or None where its results do not lie as ours."""
    if n.dtype == torch.float64 or n.rope or not n.rank:
        return None
    if n.dtype == torch.float32 and not device.cublaslt:
        return None  # the accuracy of PyTorch's products is a global setting
    if not all(w.merged and w.columns for w in n.up):
        return None
    count = n.tokens * n.rank
    down = Library("hidden", "w_down", "partial" if n.norm else "latent")
    steps: list[Launch | Library] = [down]
    scratch = [("latent", count, n.dtype)]
    if n.norm:
        scratch.append(("partial", count, n.dtype))
        steps.append(latent_launch(n, 1, n.dtype, n.dtype))
    k, v = n.up
    if n.layout == "stacked" and (k.row, k.column) == (v.row, v.column):
        steps.append(Library("latent", "w_up_k", "out0", both=True))
    elif n.layout == "stacked":
        steps += [Library("latent", name, "out0", i) for i, name in enumerate(("w_up_k", "w_up_v"))]
    else:
        steps += [Library("latent", "w_up_k", "out0"), Library("latent", "w_up_v", "out1")]
    return Plan("library", tuple(steps), tuple(scratch), "no kernel of our own is faster here")


DESIGNS = (
    "registers",
    "fused",
    "block",
    "decode",
    "narrow",
    "cluster",
    "pair",
    "wide",
    "split",
    "wgmma",
    "small",
    "thin",
    "few",
    "parts",
    "library",
    "mma",
    "product",
)


def _candidates(n: Operands) -> tuple[str, ...]:
    """Designs by preference, of which the first that fits is taken (measured on an H200)."""
    if n.dtype in (torch.float16, torch.bfloat16):
        few = ("wide", "cluster", "pair", "split", "decode", "thin", "narrow", "small")
        if n.norm and n.tokens < _NORM_TOKENS:
            return (*few, "mma", "product")
        return (*few, "library", "wgmma", "mma", "product")
    little = ("registers", "small", "cluster", "split", "few", "fused")
    return (*little, "parts", "library", "mma", "product")


@functools.lru_cache(maxsize=1024)
def plan(n: Operands, device: Device = H200, design: str | None = None) -> Plan:
    """The launches for one call with at least one token and one column.

    A plan with ``exchange`` needs a `cuda_exchange.buffer`; where there is none, pick another
    design.

    Args:
        design: one of `DESIGNS` instead of the best one that fits.

    Raises:
        ValueError: the design asked for does not fit, or the problem needs too many blocks.
    """
    chosen: Plan | None = None
    for name in _candidates(n) if design is None else (design,):
        if name == "registers":
            chosen = _registers(n, device)
        elif name == "block":
            chosen = block_plan(n, device)
        elif name == "decode":
            chosen = decode(n, device)
        elif name == "narrow":
            chosen = narrow(n, device, design is not None)
        elif name == "cluster":
            chosen = cluster(n, device, design is not None)
        elif name == "pair":
            chosen = pair(n, device, design is not None)
        elif name == "wide":
            chosen = wide(n, device, design is not None)
        elif name == "split":
            chosen = split(n, device, design is not None)
        elif name == "wgmma":
            chosen = prefill(n, device, design is not None)
        elif name == "small":
            chosen = small(n, device, design is not None)
        elif name == "thin":
            chosen = thin(n, device, design is not None)
        elif name == "few":
            chosen = few(n, device)
        elif name == "parts":
            chosen = parts(n, device, design is not None)
        elif name == "fused":
            chosen = _fused(n, device, design is not None)
        elif name == "library":
            chosen = library(n, device)
        elif name == "mma":
            chosen = mma(n, device)
        elif name == "product":
            chosen = _product(n, device)
        if chosen is not None:
            break
    if chosen is None:
        raise ValueError(
            f"mla_kv: the design {design!r} does not fit {n}; there are {', '.join(DESIGNS)}, and "
            "None takes the best one that fits"
        )
    if any(step.grid > _MAX_BLOCKS for step in chosen.launches if isinstance(step, Launch)):
        raise ValueError(
            f"mla_kv: {n.tokens} tokens with {n.columns} columns need more than {_MAX_BLOCKS} "
            "blocks; split the tokens over several calls"
        )
    return chosen
