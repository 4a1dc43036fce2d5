"""The CUDA kernels of mla_kv: choice of design, launch, and the module."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from kernelproof.cuda import Kernel
from kernelproof.ops.mla_kv.layout import (
    Layout,
    as_two_axes,
    check_kinds,
    check_shapes,
    layout_of,
)

_C_TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "__half",
    torch.bfloat16: "__nv_bfloat16",
}
# BM, BN, BK, TM, TN of the tiled kernels: see `Tile` in kernel.cu.
_SMALL_TILE = (16, 64, 32, 1, 4)
_LARGE_TILE = (64, 64, 16, 4, 4)
_TILE_THREADS = 256
# Bytes of shared memory that every GPU from sm_80 on grants twice per multiprocessor.
_FUSED_SHARED_LIMIT = 80 * 1024
_STATIC_SHARED_LIMIT = 48 * 1024
# Multiply-adds above which the larger tiles of two launches win over one fused launch.
_FUSED_WORK = 1 << 26
# A second launch costs about as much as this many steps of a tile's loop.
_LAUNCH_STEPS = 3
_REGISTER_TOKENS_PER_SM = 8
# Quads of weights a thread can hold without spilling.
_REGISTER_QUADS = 24
_MAX_BLOCKS = 2**31 - 1


class Launch(NamedTuple):
    """One launch. ``operands`` names the tensors that come before ``sizes``: the arguments of
    `mla_kv_cuda`, "out", "latent" and "partial"."""

    name: str
    operands: tuple[str, ...]
    sizes: tuple[int, ...]
    grid: int
    block: int
    shared: int = 0


class Plan(NamedTuple):
    """How to run one layout: ``design`` is "registers", "fused" or "product"; ``scratch`` names
    tensors of sums to allocate, with their number of elements."""

    design: str
    launches: tuple[Launch, ...]
    scratch: tuple[tuple[str, int], ...] = ()


_OPERANDS = ("hidden", "w_down", "w_up_k", "w_up_v", "out")


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@functools.cache
def kernel(name: str) -> Kernel:
    """The instance ``name`` of kernel.cu."""
    return Kernel(Path(__file__).with_name("kernel.cu"), name)


def register_threads(model: int, rank: int, columns: int, tokens: int) -> int | None:
    """Block size for mla_kv_registers, or None where the weights do not fit into registers.

    The one with the fewest idle load slots; where equal, the one closest to 384 threads.
    """
    best: tuple[int, int, int] | None = None
    for threads in range(128, 513, 32):
        down_groups, up_groups = threads // (rank // 4), threads // (columns // 2)
        if down_groups == 0 or up_groups == 0:
            continue
        up_rows = 4 * _ceil_div(_ceil_div(rank, up_groups), 4)
        quads = _ceil_div(model, down_groups) + up_rows
        partials = max(down_groups * (tokens * rank + 4), up_groups * tokens * 2 * columns)
        if quads > _REGISTER_QUADS:
            continue
        if 4 * (4 * model + tokens * rank + partials) > _STATIC_SHARED_LIMIT:
            continue
        choice = (quads * threads, abs(threads - 384), threads)
        best = choice if best is None else min(best, choice)
    return None if best is None else best[2]


def _register_launch(layout: Layout, multiprocessors: int) -> Launch | None:
    """mla_kv_registers for contiguous weights and tokens, or None where it does not fit."""
    n = layout
    dense = (n.down_row, n.down_column, n.k_row, n.k_column, n.v_row, n.v_column)
    if dense != (n.rank, 1, n.columns, 1, n.columns, 1) or n.hidden_column != 1:
        return None
    if n.inner != n.tokens or n.rank % 4 or n.columns % 4 or not n.rank:
        return None
    if not 0 < n.model <= 2048 or n.tokens > _REGISTER_TOKENS_PER_SM * multiprocessors:
        return None
    tokens = min(4, _ceil_div(n.tokens, multiprocessors))
    threads = register_threads(n.model, n.rank, n.columns, tokens)
    if threads is None:
        return None
    name = f"mla_kv_registers<{n.model}, {n.rank}, {n.columns}, {tokens}, {threads}>"
    grid = _ceil_div(n.tokens, tokens)
    return Launch(name, _OPERANDS, (n.tokens, n.inner_stride), grid, threads)


def _splits(blocks: int, depth: int, multiprocessors: int) -> tuple[int, int]:
    """Number of splits of a sum and their depth, so that ``blocks`` blocks become about one per
    multiprocessor. Each split keeps at least 4 steps, which hide the latency of the loads; a sum
    of less than 16 steps is not worth the launch that adds the parts."""
    step = _SMALL_TILE[2]
    wanted = min(multiprocessors // max(blocks, 1), depth // (4 * step))
    if depth < 16 * step or wanted < 2:
        return 1, depth
    split_depth = _ceil_div(_ceil_div(depth, wanted), step) * step
    return _ceil_div(depth, split_depth), split_depth


def _fused_launch(
    layout: Layout, dtype: torch.dtype, multiprocessors: int, asked: bool
) -> Launch | None:
    """mla_kv_fused, or None where it does not fit or, unless ``asked`` for, two launches win."""
    n = layout
    rows, width, depth, _, _ = _SMALL_TILE
    item = 8 if dtype == torch.float64 else 4
    staging = 2 * depth * ((rows + 4) + (width + 4)) * item
    shared = staging + _ceil_div(n.rank, depth) * depth * (rows + 4) * item
    work = n.tokens * n.rank * (n.model + 2 * n.columns)
    if shared > _FUSED_SHARED_LIMIT or (work > _FUSED_WORK and not asked):
        return None
    token_tiles, column_tiles = _ceil_div(n.tokens, rows), _ceil_div(n.columns, width)
    # Splitting the columns over more blocks repeats the down-projection, which costs no time
    # while there are idle multiprocessors.
    chunks = max(1, min(2 * column_tiles, multiprocessors // token_tiles))
    tiles = _ceil_div(2 * column_tiles, chunks)
    down_steps, up_steps = _ceil_div(n.model, depth), _ceil_div(n.rank, depth)
    steps = _ceil_div(n.rank, width) * down_steps + tiles * up_steps
    splits, split_depth = _splits(token_tiles * _ceil_div(n.rank, width), n.model, multiprocessors)
    extra_launches = 1 if splits == 1 else 2
    others = split_depth // depth + up_steps + extra_launches * _LAUNCH_STEPS
    if not asked and steps > others:
        return None
    grid = token_tiles * _ceil_div(2 * column_tiles, tiles)
    name = f"mla_kv_fused<{_C_TYPES[dtype]}, {', '.join(map(str, _SMALL_TILE))}>"
    sizes = (*layout, token_tiles, column_tiles, tiles)
    return Launch(name, _OPERANDS, sizes, grid, _TILE_THREADS, shared)


def _product_plan(layout: Layout, dtype: torch.dtype, multiprocessors: int) -> Plan:
    """Two launches of mla_kv_product, with mla_kv_sum between them where the first is split."""
    n = layout
    value, total = _C_TYPES[dtype], "double" if dtype == torch.float64 else "float"

    def product(
        types: str, operands: tuple[str, ...], source: tuple[int, ...], columns: int,
        strides: tuple[int, ...], halves: int,
    ) -> tuple[Launch, int]:  # fmt: skip
        tile = _LARGE_TILE
        if _ceil_div(n.tokens, tile[0]) * _ceil_div(columns, tile[1]) * halves < multiprocessors:
            tile = _SMALL_TILE
        token_tiles, column_tiles = _ceil_div(n.tokens, tile[0]), _ceil_div(columns, tile[1])
        blocks = token_tiles * column_tiles * halves
        splits, split_depth = 1, source[-1]
        if halves == 1 and tile == _SMALL_TILE:
            splits, split_depth = _splits(blocks, source[-1], multiprocessors)
        name = f"mla_kv_product<{types}, {', '.join(map(str, tile))}>"
        sizes = (*source, columns, *strides, split_depth, halves, token_tiles, column_tiles)
        return Launch(name, operands, sizes, blocks * splits, _TILE_THREADS), splits

    launches: list[Launch] = []
    count = n.tokens * n.rank
    scratch = [("latent", count)]
    if n.rank:
        source = (n.tokens, n.inner, n.outer_stride, n.inner_stride, n.hidden_column, n.model)
        down, splits = product(
            f"{value}, {value}, {total}", ("hidden", "w_down", "w_down", "latent"), source, n.rank,
            (n.down_row, n.down_column) * 2, 1,
        )  # fmt: skip
        if splits > 1:
            down = down._replace(operands=(*down.operands[:3], "partial"))
            scratch.append(("partial", splits * count))
        launches.append(down)
        if splits > 1:
            blocks = _ceil_div(count, _TILE_THREADS)
            name = f"mla_kv_sum<{total}>"
            sizes = (count, splits)
            launches.append(Launch(name, ("partial", "latent"), sizes, blocks, _TILE_THREADS))
    source = (n.tokens, n.tokens, 0, n.rank, 1, n.rank)
    up, _ = product(
        f"{total}, {value}, {value}", ("latent", "w_up_k", "w_up_v", "out"), source, n.columns,
        (n.k_row, n.k_column, n.v_row, n.v_column), 2,
    )  # fmt: skip
    return Plan("product", (*launches, up), tuple(scratch))


def plan(
    layout: Layout,
    dtype: torch.dtype,
    *,
    multiprocessors: int = 132,
    aligned: bool = True,
    design: str | None = None,
) -> Plan:
    """The launches for one layout.

    Args:
        layout: of operands with at least one token and one column.
        multiprocessors: of the device.
        aligned: every weight starts at a multiple of 16 bytes.
        design: "registers", "fused" or "product" instead of the best one that fits.

    Raises:
        ValueError: the design asked for does not fit, or the problem needs too many blocks.
    """
    launch: Launch | None = None
    if design in (None, "registers") and dtype == torch.float32 and aligned:
        launch = _register_launch(layout, multiprocessors)
    if launch is None and design in (None, "fused"):
        launch = _fused_launch(layout, dtype, multiprocessors, design is not None)
    if launch is not None:
        chosen = Plan(launch.name.split("<")[0].removeprefix("mla_kv_"), (launch,))
    elif design in (None, "product"):
        chosen = _product_plan(layout, dtype, multiprocessors)
    else:
        raise ValueError(f"the design {design!r} does not fit {layout} in {dtype}; use design=None")
    if any(launch.grid > _MAX_BLOCKS for launch in chosen.launches):
        raise ValueError(
            f"mla_kv: {layout.tokens} tokens with {layout.columns} columns need more than "
            f"{_MAX_BLOCKS} blocks; split the tokens over several calls"
        )
    return chosen


@functools.cache
def _device_facts(index: int) -> tuple[int, bool]:
    """Multiprocessors, and whether there is programmatic dependent launch."""
    facts = torch.cuda.get_device_properties(index)
    return facts.multi_processor_count, facts.major >= 9


@functools.lru_cache(maxsize=1024)
def _cached_plan(
    kv_heads: int, dtype: torch.dtype, device: int, aligned: bool, design: str | None, *key: Any
) -> Plan | None:
    """`plan`, or None for an empty output. ``key`` is the operands' shapes and strides in turn,
    so that a layout is checked and planned once."""
    tensors = [torch.empty_strided(key[i], key[i + 1], device="meta") for i in range(0, 8, 2)]
    check_shapes(*tensors, kv_heads=kv_heads)
    if 0 in key[0][:-1] or key[4][1] == 0:
        return None
    multiprocessors, _ = _device_facts(device)
    layout = layout_of(*tensors)
    return plan(layout, dtype, multiprocessors=multiprocessors, aligned=aligned, design=design)


def mla_kv_cuda(
    hidden: torch.Tensor,
    w_down: torch.Tensor,
    w_up_k: torch.Tensor,
    w_up_v: torch.Tensor,
    kv_heads: int,
    design: str | None = None,
) -> torch.Tensor:
    """Keys and values ``(..., 2, H, D)``. Arguments as `kernelproof.ops.mla_kv.mla_kv`, all on
    one CUDA device. Launches on the current stream and does not wait.

    Args:
        design: "registers", "fused" or "product" instead of the best one that fits.

    Raises:
        TypeError, ValueError: the operands do not fit together, or as `plan`.
        CompileError, UnsupportedError: the kernel cannot be built here.
    """
    check_kinds(hidden, w_down, w_up_k, w_up_v)
    if not hidden.is_cuda:
        raise ValueError(f"mla_kv: this is the CUDA kernel, the operands are on {hidden.device}")
    hidden = as_two_axes(hidden)
    aligned = not (w_down.data_ptr() | w_up_k.data_ptr() | w_up_v.data_ptr()) % 16
    chosen = _cached_plan(
        kv_heads, hidden.dtype, hidden.device.index, aligned, design,
        hidden.shape, hidden.stride(), w_down.shape, w_down.stride(),
        w_up_k.shape, w_up_k.stride(), w_up_v.shape, w_up_v.stride(),
    )  # fmt: skip
    columns = w_up_k.shape[1]
    out = hidden.new_empty((*hidden.shape[:-1], 2, kv_heads, columns // kv_heads))
    if chosen is None:
        return out
    tensors = dict(zip(_OPERANDS, (hidden, w_down, w_up_k, w_up_v, out), strict=True))
    for name, count in chosen.scratch:
        total = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        tensors[name] = torch.empty(count, dtype=total, device=hidden.device)
    _, programmatic = _device_facts(hidden.device.index)
    for launch in chosen.launches:
        kernel(launch.name)(
            *[tensors[name] for name in launch.operands],
            *launch.sizes,
            grid=launch.grid,
            block=launch.block,
            shared=launch.shared,
            programmatic=programmatic,
        )
    return out


class ModelNew(nn.Module):
    """`problem.Model` on the CUDA kernels."""

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
        return mla_kv_cuda(hidden, w_down, w_up_k, w_up_v, self.kv_heads)
