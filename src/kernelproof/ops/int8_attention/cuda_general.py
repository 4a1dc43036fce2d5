"""Launches of kernel_general.cu: every form that the kernels of the plain form do not take."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.ops.int8_attention import cuda_decode
from kernelproof.ops.int8_attention.contract import OUT_DTYPES, Form

# Both include form.cuh, and that common.cuh.
GENERAL = Path(__file__).parent / "kernel_general.cu"
ROWS = Path(__file__).parent / "kernel_rows.cu"
LOG2_E = 1.4426950408889634

_INSTANCES = (32, 64, 96, 128, 192, 256)  # head dimensions that `attend_general` is compiled for
_INT_LIMIT = 2**30  # rows and keys of one sequence below this keep 32-bit arithmetic exact
_WARPS, _ROWS = 4, 16  # of a block, as in the source
_SPLIT_KEYS = 512  # keys that a split has at least: 8 steps for each warp
_MOST_SPLITS = 64  # `combine_parts` takes no more

# What `explain` says of the probabilities, by whether "strict" was asked for.
PRECISION = {True: "fp16 pairs (strict)", False: "fp16 (high; there is nothing faster)"}


class Plan(NamedTuple):
    """How one combination of shapes and strides is launched."""

    kernel: Kernel
    grid: int
    block: int
    shared: int
    splits: int
    tiles: int  # 0: `attend_rows`
    words: bool  # of `attend_rows`: reads four bytes at once


@functools.cache
def kernel(name: str) -> Kernel:
    if name.startswith("attend_decode"):
        return Kernel(cuda_decode.SOURCE, name)
    return Kernel(GENERAL if name.startswith("attend_general") else ROWS, name)


def run(
    tensors: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    form: Form,
    out: Tensor,
    lse: Tensor | None,
    multiprocessors: int,
) -> None:
    """Launch on the current device and stream. ``tensors``: q, k, v and their scales;
    nothing is empty but the head dimension and sequences."""
    plan = plan_of(tensors, form, multiprocessors)
    scratch = scratch_floats(tensors[0].shape, plan, form.out_dtype)
    extra = None
    if scratch:
        extra = torch.empty(scratch, dtype=torch.float32, device=out.device)
    for step in steps(tensors, causal, scale, form, out, lse, extra, plan):
        step.kernel.again(out.get_device(), step.args, step.how)


class Step(NamedTuple):
    """One launch."""

    kernel: Kernel
    args: tuple[Any, ...]
    how: tuple[Any, ...]  # as of `Kernel.again`


def scratch_floats(q_shape: tuple[int, ...], plan: Plan, out_dtype: torch.dtype) -> int:
    """fp32 elements of scratch memory that a launch needs."""
    rows, dim = math.prod(q_shape[:3]), q_shape[3]
    if plan.tiles == 0:
        return 0 if out_dtype == torch.float32 else rows * dim
    return rows * plan.splits * (dim + 3) if plan.splits > 1 else 0


def steps(
    tensors: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    form: Form,
    out: Tensor,
    lse: Tensor | None,
    scratch: Tensor | None,
    plan: Plan,
) -> list[Step]:
    """The launches of ``plan``, with `scratch_floats` of scratch memory."""
    q, k, v, v_scale = *tensors[:3], tensors[5]
    places = tuple(None if t is None else t.contiguous() for t in form.places)
    tail = (*places, *_tail(tensors, causal, scale, form))
    if plan.tiles == 0:
        sums = out if scratch is None else scratch
        half = int(v.dtype == torch.float16)
        args = (*tensors, out, lse, sums, int(plan.words), half, *tail)
        return [Step(plan.kernel, args, how(plan.grid, plan.block))]
    heads, dim = q.shape[2:]
    rows = math.prod(q.shape[:3])
    overlaps = launches_overlap(q.device.index)
    early = overlaps and plan.kernel.path == cuda_decode.SOURCE
    args = (*tensors, out, lse, scratch, plan.splits, plan.tiles, *tail)
    first = Step(plan.kernel, args, how(plan.grid, plan.block, plan.shared, early))
    if plan.splits == 1:
        return [first]
    merged = (
        scratch, v_scale if v_scale.dim() == 1 else None, out, lse, rows, heads,
        heads // k.shape[2], v_scale.stride(-1), plan.splits, dim, OUT_DTYPES.index(form.out_dtype),
    )  # fmt: skip
    grid = -(-rows * -(-dim // 32) // _WARPS)
    return [first, Step(kernel("combine_parts"), merged, how(grid, 32 * _WARPS, 0, overlaps))]


def how(
    grid: int | tuple[int, ...], block: int, shared: int = 0, programmatic: bool = False
) -> tuple[Any, ...]:
    """As `Kernel.again` takes it."""
    return (grid, block, shared, None, programmatic, False, True)


@functools.cache
def launches_overlap(device: int | None) -> bool:
    """Whether a launch may begin while the previous kernel ends (programmatic dependent launch)."""
    return torch.cuda.get_device_capability(device) >= (9, 0)


def explanation(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> list[str]:
    """Lines for `explain`."""
    plan = plan_of(tensors, form, multiprocessors)
    if plan.tiles == 0:
        return [
            f"CUDA kernel attend_rows, one warp per query row ({plan.grid} blocks): heads wider "
            f"than {_INSTANCES[-1]}, or sizes beyond 32 bits",
            "probabilities in fp32, so every accuracy is computed as strict",
        ]
    split = f", keys shared out over {plan.splits} blocks, then combine_parts"
    return [
        f"CUDA kernel {plan.kernel.name}: {plan.tiles} tiles of rows for each key head"
        f"{split if plan.splits > 1 else ''}, {plan.block} threads, {plan.shared} bytes of shared "
        "memory",
        f"probabilities as {PRECISION[form.strict or cuda_decode.in_pairs(plan.kernel.name)]}",
    ]


def plan_of(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> Plan:
    q, k, v = tensors[:3]
    cu, table = form.cu_seqlens_q, form.block_table
    return plan_for(
        q.shape, k.shape, q.stride(), k.stride(), v.stride(),
        (q.data_ptr() | k.data_ptr()) & 15, v.data_ptr() & 15, v.dtype == torch.float16,
        form.strict, 0 if cu is None else cu.shape[0], 0 if table is None else table.shape[1],
        multiprocessors, tensors[4].dim() == 3 or tensors[5].dim() == 3,
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def plan_for(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
    v_address: int,
    half: bool,
    strict: bool,
    ends: int,
    pages: int,
    multiprocessors: int,
    scaled: bool = True,
) -> Plan:
    """The launch. ``address``: the low bits of the pointers of q and k, ``v_address`` those of v.
    ``ends``: size of cu_seqlens_q, 0 for none; ``pages``: columns of the block table; ``scaled``:
    keys or values have scales of their own."""
    batch, q_len, heads, dim = q_shape
    kv_len, kv_heads = k_shape[1], k_shape[2]
    group = heads // kv_heads
    keys = kv_len * pages if pages else kv_len
    unit = dim == 1 or q_stride[3] == k_stride[3] == v_stride[3] == 1
    qk_odd = address
    for stride in (q_stride, k_stride):
        qk_odd |= stride[0] | stride[1] | stride[2]
    if dim == 0 or dim > _INSTANCES[-1] or max(q_len * group, keys) >= _INT_LIMIT:
        rows = batch * q_len * heads
        words = (qk_odd | dim) % 4 == 0 and unit
        return Plan(kernel("attend_rows"), -(-rows // _WARPS), 32 * _WARPS, 0, 1, 0, words)
    if not (half or ends) and cuda_decode.takes(q_stride, k_stride, v_stride, address | v_address):
        chosen = cuda_decode.choose(
            batch, q_len * group, keys, kv_heads, dim, strict, scaled, pages > 0, multiprocessors
        )
        if chosen is not None:
            return Plan(kernel(chosen.name), *chosen[1:], words=False)
    width = next(size for size in _INSTANCES if size >= dim)
    v_odd = v_address
    for size in v_stride[:3]:
        v_odd |= size * (2 if half else 1)
    exact = (
        dim == width
        and unit
        and qk_odd % (16 if width % 64 == 0 else 8) == 0
        and v_odd % (8 if half else 4) == 0
    )
    if ends:
        tiles = q_len * group // _ROWS + ends - 1
    else:
        tiles = batch * -(-q_len * group // _ROWS)
    splits = 1 if ends else _splits(tiles * kv_heads, keys, multiprocessors)
    flags = ", ".join(str(flag).lower() for flag in (half, exact, strict, pages > 0))
    return Plan(
        kernel(f"attend_general<{width}, {flags}>"),
        max(tiles, 1) * kv_heads * splits,
        32 * _WARPS,
        4 * (_WARPS * _ROWS * (width + 4) + 2 * _WARPS * _ROWS + _ROWS),
        splits,
        max(tiles, 1),
        False,
    )


def _splits(blocks: int, keys: int, multiprocessors: int) -> int:
    """Blocks that share the keys of one tile, with two of them for each multiprocessor. Lengths on
    the device are not known here, so the most keys that there can be decide."""
    most = min(keys // _SPLIT_KEYS, _MOST_SPLITS)
    return cuda_decode.fewest_splits(blocks, 2 * multiprocessors, most)


def _tail(
    tensors: tuple[Tensor, ...], causal: bool, scale: float, form: Form
) -> tuple[int | float, ...]:
    """The arguments of FORM_PARAMETERS behind the pointers."""
    q, k, v, q_scale, k_scale, v_scale = tensors
    batch, q_len, heads, dim = q.shape
    kv_len, kv_heads = k.shape[1], k.shape[2]
    cu, table = form.cu_seqlens_q, form.block_table
    return (
        batch, q_len, kv_len, heads, heads // kv_heads, dim,
        batch if cu is None else cu.shape[0] - 1, 0 if table is None else table.shape[1],
        int(causal), int(k_scale.dim() == 3), int(v_scale.dim() == 3),
        OUT_DTYPES.index(form.out_dtype),
        *q.stride(), *k.stride(), *v.stride(),
        *_scale_strides(q_scale), *_scale_strides(k_scale), *_scale_strides(v_scale),
        *(form.block or (1, 1, 1)), scale * LOG2_E,
    )  # fmt: skip


def _scale_strides(scale: Tensor) -> tuple[int, ...]:
    """Of batch, block and head; scales per head are the same in every batch element and block."""
    return (0, 0, *scale.stride()) if scale.dim() == 1 else scale.stride()
