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
# Above these, two launches that read the weights once per large tile win over one fused launch.
_FUSED_WEIGHT_BYTES = 2 << 20
_FUSED_TOKENS_PER_SM = 32
_REGISTER_TOKENS_PER_SM = 8
# Quads of weights a thread can hold without spilling.
_REGISTER_QUADS = 24
_MAX_BLOCKS = 2**31 - 1


class Launch(NamedTuple):
    """One launch: the kernel's name and sizes; operands are added at the call."""

    name: str
    sizes: tuple[int, ...]
    grid: int
    block: int
    shared: int
    programmatic: bool


class Plan(NamedTuple):
    """How to run one layout: ``design`` is "registers", "fused" or "product"."""

    design: str
    launches: tuple[Launch, ...]
    columns: int
    tokens: int
    rank: int


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


def _register_launch(layout: Layout, multiprocessors: int, programmatic: bool) -> Launch | None:
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
    return Launch(name, (n.tokens, n.inner_stride), grid, threads, 0, programmatic)


def _fused_launch(layout: Layout, dtype: torch.dtype, multiprocessors: int) -> Launch | None:
    """mla_kv_fused, or None where two launches are the better way."""
    n = layout
    rows, width, depth, _, _ = _SMALL_TILE
    item = 8 if dtype == torch.float64 else 4
    staging = 2 * depth * ((rows + 4) + (width + 4)) * item
    shared = staging + _ceil_div(n.rank, depth) * depth * (rows + 4) * item
    weight_bytes = (n.model * n.rank + 2 * n.rank * n.columns) * dtype.itemsize
    if shared > _FUSED_SHARED_LIMIT or weight_bytes > _FUSED_WEIGHT_BYTES:
        return None
    if n.tokens > _FUSED_TOKENS_PER_SM * multiprocessors:
        return None
    token_tiles, column_tiles = _ceil_div(n.tokens, rows), _ceil_div(n.columns, width)
    # Splitting the columns over more blocks repeats the down-projection, which costs no time
    # while there are idle multiprocessors.
    chunks = max(1, min(2 * column_tiles, multiprocessors // token_tiles))
    tiles = _ceil_div(2 * column_tiles, chunks)
    grid = token_tiles * _ceil_div(2 * column_tiles, tiles)
    name = f"mla_kv_fused<{_C_TYPES[dtype]}, {', '.join(map(str, _SMALL_TILE))}>"
    sizes = (*layout, token_tiles, column_tiles, tiles)
    return Launch(name, sizes, grid, _TILE_THREADS, shared, False)


def _product_launches(layout: Layout, dtype: torch.dtype, multiprocessors: int) -> list[Launch]:
    """The two launches of mla_kv_product."""
    n = layout
    value, total = _C_TYPES[dtype], "double" if dtype == torch.float64 else "float"
    launches = []
    for halves in (1, 2):
        columns = n.rank if halves == 1 else n.columns
        tile = _LARGE_TILE
        if _ceil_div(n.tokens, tile[0]) * _ceil_div(columns, tile[1]) * halves < multiprocessors:
            tile = _SMALL_TILE
        token_tiles, column_tiles = _ceil_div(n.tokens, tile[0]), _ceil_div(columns, tile[1])
        if halves == 1:
            types = f"{value}, {value}, {total}"
            source = (n.tokens, n.inner, n.outer_stride, n.inner_stride, n.hidden_column, n.model)
            strides = (n.down_row, n.down_column) * 2
        else:
            types = f"{total}, {value}, {value}"
            source = (n.tokens, n.tokens, 0, n.rank, 1, n.rank)
            strides = (n.k_row, n.k_column, n.v_row, n.v_column)
        name = f"mla_kv_product<{types}, {', '.join(map(str, tile))}>"
        sizes = (*source, columns, *strides, halves, token_tiles, column_tiles)
        grid = token_tiles * column_tiles * halves
        launches.append(Launch(name, sizes, grid, _TILE_THREADS, 0, False))
    return launches


def plan(
    layout: Layout,
    dtype: torch.dtype,
    *,
    multiprocessors: int = 132,
    aligned: bool = True,
    programmatic: bool = True,
    design: str | None = None,
) -> Plan:
    """The launches for one layout.

    Args:
        layout: of operands with at least one token and one column.
        multiprocessors: of the device.
        aligned: every weight starts at a multiple of 16 bytes.
        programmatic: the device has programmatic dependent launch (sm_90 and later).
        design: "registers", "fused" or "product" instead of the best one that fits.

    Raises:
        ValueError: the design asked for does not fit, or the problem needs too many blocks.
    """
    chosen: Launch | None = None
    if design in (None, "registers") and dtype == torch.float32 and aligned:
        chosen = _register_launch(layout, multiprocessors, programmatic)
    if chosen is None and design in (None, "fused"):
        chosen = _fused_launch(layout, dtype, multiprocessors)
    if chosen is not None:
        launches = [chosen]
        name = chosen.name.split("<")[0].removeprefix("mla_kv_")
    elif design in (None, "product"):
        launches, name = _product_launches(layout, dtype, multiprocessors), "product"
    else:
        raise ValueError(f"the design {design!r} does not fit {layout} in {dtype}; use design=None")
    if any(launch.grid > _MAX_BLOCKS for launch in launches):
        raise ValueError(
            f"mla_kv: {layout.tokens} tokens with {layout.columns} columns need more than "
            f"{_MAX_BLOCKS} blocks; split the tokens over several calls"
        )
    return Plan(name, tuple(launches), layout.columns, layout.tokens, layout.rank)


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
    multiprocessors, programmatic = _device_facts(device)
    return plan(
        layout_of(*tensors), dtype, multiprocessors=multiprocessors, aligned=aligned,
        programmatic=programmatic, design=design,
    )  # fmt: skip


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
    if hidden.device.type != "cuda":
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
    if chosen.design != "product":
        _run(chosen.launches[0], hidden, w_down, w_up_k, w_up_v, out)
        return out
    total = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    latent = torch.empty((chosen.tokens, max(chosen.rank, 1)), dtype=total, device=hidden.device)
    down, up = chosen.launches
    if chosen.rank:
        _run(down, hidden, w_down, w_down, latent)
    _run(up, latent, w_up_k, w_up_v, out)
    return out


def _run(launch: Launch, *operands: torch.Tensor) -> None:
    kernel(launch.name)(
        *operands,
        *launch.sizes,
        grid=launch.grid,
        block=launch.block,
        shared=launch.shared,
        programmatic=launch.programmatic,
    )


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
