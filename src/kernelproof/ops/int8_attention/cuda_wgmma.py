"""Launches of kernel_wgmma.cu: many queries on sm_90."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.ops.int8_attention.contract import OUT_DTYPES, PLAIN, Form
from kernelproof.ops.int8_attention.cuda_general import PRECISION, Step, how
from kernelproof.tensor_map import TensorMap

SOURCE = Path(__file__).parent / "kernel_wgmma.cu"  # includes softmax.cuh, tiles.cuh, widen.cuh
LOG2_E = 1.4426950408889634

_ROWS, _THREADS = 128, 384  # of a block, as in the source
_PREPARE_THREADS = 128
_SLICE, _WIDEN_WARPS = 64, 8  # tokens that a warp of `widen_values` converts, warps of a block
# Fewer queries of a sequence leave most of a tile of rows empty.
_LEAST_QUERIES = 64
# Where the other kernels are as fast (attempts_prefill.md): keys, beside `attend_blocks`; batch *
# heads * queries * keys * D, beside `attend` (twice as many beside `attend_general`); tiles of rows
# * D for each multiprocessor, beside both.
_LEAST_KEYS, _LEAST_WORK, _LEAST_COLUMNS = 384, 2**28, 60
_INT_LIMIT = 2**30
# Keys and values of the heads that are worked on at a time: half of the L2 cache of an H200.
_GATHERED_BYTES = 25 << 20


class Instance(NamedTuple):
    """Template arguments of `attend_wgmma` beside the width; see there."""

    keys: int
    k_stages: int
    v_stages: int
    q_shared: bool


# By width and whether "strict"; the fastest on an H200 of those in attempts.md.
_INSTANCES = {
    (64, False): Instance(160, 3, 3, False),
    (64, True): Instance(128, 3, 3, False),
    (80, False): Instance(128, 3, 3, False),
    (80, True): Instance(96, 3, 3, False),
    (96, False): Instance(128, 3, 3, False),
    (96, True): Instance(80, 3, 3, False),
    (128, False): Instance(128, 3, 3, False),
    (128, True): Instance(64, 4, 4, False),
    (256, False): Instance(96, 2, 2, True),
    (256, True): Instance(64, 4, 4, True),
}


# The most queries of a sequence, times query heads of a key head, with which int8 values become
# fp16 in shared memory: each time that a tile of rows reads them, and not once before. By width and
# whether "strict". "high" of 256 columns has no shared memory to spare.
_INSIDE_QUERIES = {
    (64, False): 4096,
    (64, True): 1024,
    (80, False): 4096,
    (80, True): 1024,
    (96, False): 4096,
    (96, True): 2048,
    (128, False): 2048,
    (128, True): 2048,
    (256, True): 2048,
}


# The same with scales per token, where they need more registers.
_TOKEN_INSTANCES = {
    (64, False): Instance(128, 3, 3, False),
}


class Plan(NamedTuple):
    """How one combination of shapes is launched."""

    kernel: Kernel
    width: int
    instance: Instance
    row: int  # bytes of a row of q and k in shared memory
    grid: int
    shared: int
    inside: bool  # values become fp16 in shared memory
    tail: tuple[int, ...]  # sequences .. tiles of the kernel's arguments


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel(SOURCE, name)


def why_not(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> str:
    """Why another kernel is the choice, in words; empty where it is `attend_wgmma`."""
    if not tensors[1].numel():
        return "there are no keys"
    return slower(tensors, form, multiprocessors) or unfit(tensors, form)


def slower(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> str:
    """Why another kernel is faster, in words; empty where it is not. Where calls of the same time
    are, as measured on an H200, depends on the kernel that would be used instead."""
    q, k, v = tensors[:3]
    batch, q_len, heads, dim = q.shape
    kv_len, cu = k.shape[1], form.cu_seqlens_q
    sequences = _sequences(q, form)
    if batch * q_len < _LEAST_QUERIES * sequences:
        return f"fewer than {_LEAST_QUERIES} queries in a sequence"
    tiles = batch * -(-q_len // _ROWS) * heads
    work = batch * heads * q_len * (kv_len // (sequences if cu is not None else 1)) * dim
    if cu is not None:
        tiles = (q_len // _ROWS + sequences) * heads
    elif form.kv_lens is None and v.dtype == torch.int8 and not _per_token(tensors):
        if kv_len > _ROWS and batch * -(-q_len // 64) * heads >= multiprocessors:
            few = kv_len < _LEAST_KEYS
            return (
                f"fewer than {_LEAST_KEYS} keys, for which attend_blocks is faster" if few else ""
            )
        if form == PLAIN:
            few = work < _LEAST_WORK or tiles * 128 < _LEAST_COLUMNS * multiprocessors
            return "so few queries and keys that attend is faster" if few else ""
    if tiles * dim < _LEAST_COLUMNS * multiprocessors and work < 2 * _LEAST_WORK:
        return f"tiles of {_ROWS} queries would leave most of the GPU idle"
    return ""


def explanation(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> list[str]:
    """Lines for `explain`."""
    plan = plan_of(tensors, form, multiprocessors)
    return [
        f"CUDA kernel {plan.kernel.name}: {plan.tail[8]} tiles of {_ROWS} queries of a head, taken "
        f"by {plan.grid} blocks of {_THREADS} threads in turn, {plan.shared} bytes of shared "
        f"memory; values {_values(tensors[2], plan)}",
        f"probabilities as {PRECISION[form.strict]}",
    ]


def _values(v: Tensor, plan: Plan) -> str:
    if plan.inside:
        return "become fp16 in shared memory"
    return "become fp16 in scratch memory"


def unfit(tensors: tuple[Tensor, ...], form: Form) -> str:
    """Why `attend_wgmma` does not take the inputs, in words; empty where it does."""
    q, k, v, _, _, v_scale = tensors
    dim = q.shape[3]
    if not q.stride(3) == k.stride(3) == v.stride(3) == 1:
        return "the innermost stride is not 1"
    if torch.cuda.get_device_capability(q.device.index)[0] != 9:
        return "the GPU is not of compute capability 9"
    if form.block_table is not None:
        return "the cache is in pages"
    if v.dtype == torch.float16 and v_scale.dim() == 3:
        return "float16 values have scales per token"
    return _unfit(
        dim, form.strict, q.stride(), k.stride(), tuple(n * v.element_size() for n in v.stride()),
        (q.data_ptr() | k.data_ptr() | v.data_ptr()) & 15, max(q.shape[1], k.shape[1]),
    )  # fmt: skip


@functools.lru_cache(maxsize=4096)
def _unfit(
    dim: int,
    strict: bool,
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
    tokens: int,
) -> str:
    if _width(dim, strict) == 0:
        return f"D = {dim} is no multiple of 16 up to 256"
    for stride in (q_stride, k_stride, v_stride):
        if any(n <= 0 or n % 16 for n in stride[:3]):
            return "rows do not start at multiples of 16 bytes"
    if address:
        return "the tensors do not start at multiples of 16 bytes"
    return "too many tokens" if tokens >= _INT_LIMIT else ""


def _width(dim: int, strict: bool) -> int:
    """The D of the instance for a head dimension, 0 for none."""
    if dim % 16:
        return 0
    return next((w for w, exact in _INSTANCES if w >= dim and exact == strict), 0)


def run(
    tensors: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    form: Form,
    out: Tensor,
    lse: Tensor | None,
    multiprocessors: int,
) -> None:
    """Launch on the current device and stream. ``tensors``: q, k, v and their scales, for which
    `unfit` is empty; nothing is empty but sequences."""
    halves, work = (
        torch.empty(sizes, dtype=dtype, device=out.device)
        for sizes, dtype in scratch_sizes(tensors, form)
    )
    made = steps(tensors, causal, scale, form, out, lse, halves, work, multiprocessors)
    for step in made:
        step.kernel.again(out.get_device(), step.args, step.how)


def scratch_sizes(
    tensors: tuple[Tensor, ...], form: Form
) -> tuple[tuple[tuple[int, ...], torch.dtype], tuple[tuple[int, ...], torch.dtype]]:
    """Of values as fp16 and of what widen.cuh keeps as `work`."""
    q, v, v_scale = tensors[0], tensors[2], tensors[5]
    batch, tokens, kv_heads, dim = v.shape
    places = _sequences(q, form) * kv_heads
    inside = _inside(tensors, form)
    special = v.dtype == torch.float16 or v_scale.dim() == 3
    count = 1 + batch * kv_heads + places * (1 + (3 * dim if special else 0))
    halves = (0,) if inside else (batch, kv_heads, tokens, dim)
    return (halves, torch.float16), ((count,), torch.int32)


def steps(
    tensors: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    form: Form,
    out: Tensor,
    lse: Tensor | None,
    halves: Tensor,
    work: Tensor,
    multiprocessors: int,
) -> list[Step]:
    """The launches, two or three, with scratch memory of `scratch_sizes`."""
    q, k, v, q_scale, k_scale, v_scale = tensors
    plan = plan_of(tensors, form, multiprocessors)
    batch, tokens, kv_heads, dim = v.shape
    sequences = plan.tail[0]
    special = v.dtype == torch.float16 or v_scale.dim() == 3
    scaled = int(v_scale.dim() == 3)
    scales = tuple(t if t.dim() == 3 else t.contiguous() for t in (q_scale, k_scale, v_scale))
    strides = tuple(n for t in scales for n in _scale_strides(t))
    blocks = form.block or (1, 1, 1)
    wide = (v, halves, work, scaled, *v.stride()[:3])
    ends = tuple(
        None if t is None else t.contiguous()
        for t in (form.cu_seqlens_q, form.cu_seqlens_k, form.kv_lens)
    )
    half = v.dtype == torch.float16
    token_scales = _per_token(tensors)
    made = []
    if half or token_scales or plan.inside:
        args: tuple[Any, ...] = (
            work, v_scale, int(special), scaled, kv_heads, tokens, dim, batch, sequences,
            *strides[6:], blocks[2],
        )  # fmt: skip
        grid = 1 if plan.inside else max(batch, sequences) * kv_heads
        made = [Step(kernel("prepare_wgmma"), args, how(grid, _PREPARE_THREADS))]
    flags = f"{str(token_scales).lower()}, {str(half).lower()}"
    grid = -(-batch * kv_heads * -(-tokens // _SLICE) // _WIDEN_WARPS)
    args = (
        scales[2], ends[1], sequences, tokens, kv_heads, dim, batch, *wide, *strides[6:], blocks[2],
    )  # fmt: skip
    if not plan.inside:
        made.append(Step(kernel(f"widen_values<{flags}>"), args, how(grid, 32 * _WIDEN_WARPS)))
    instance, row = plan.instance, plan.row
    row_bytes = 2 * dim  # of a token in `halves`, whose heads come before tokens
    axes = (row_bytes * tokens, row_bytes, row_bytes * tokens * kv_heads)
    box = (64, 1, instance.keys, 1)
    widened = TensorMap(halves, (dim, kv_heads, tokens, batch), axes, box, 128)
    if plan.inside:
        widened = _map(v, (min(plan.width, 128), 1, instance.keys, 1), 0)
    maps = (
        _map(q, (row, 1, _ROWS, 1), row),
        _map(k, (row, 1, instance.keys, 1), row),
        widened,
    )
    args = (
        *maps, *scales, out, lse, *ends, *plan.tail, int(causal),
        OUT_DTYPES.index(form.out_dtype), scale * LOG2_E, *wide, *strides, *blocks,
    )  # fmt: skip
    made.append(Step(plan.kernel, args, how(plan.grid, _THREADS, plan.shared, True)))
    return made


def _sequences(q: Tensor, form: Form) -> int:
    return q.shape[0] if form.cu_seqlens_q is None else form.cu_seqlens_q.shape[0] - 1


def _per_token(tensors: tuple[Tensor, ...]) -> bool:
    """Whether any of the scales is per token or block of tokens."""
    return any(t.dim() == 3 for t in tensors[3:6])


def _scale_strides(scale: Tensor) -> tuple[int, ...]:
    """Of batch, block and head; scales per head are the same in every batch element and block."""
    return (0, 0, *scale.stride()) if scale.dim() == 1 else scale.stride()


def _map(x: Tensor, box: tuple[int, ...], swizzle: int) -> TensorMap:
    """Of (batch, token, head, dim) as dim, head, token, batch."""
    batch, tokens, heads, dim = x.shape
    steps = x.stride()
    strides = tuple(n * x.element_size() for n in (steps[2], steps[1], steps[0]))
    return TensorMap(x, (dim, heads, tokens, batch), strides, box, swizzle)


def plan_of(tensors: tuple[Tensor, ...], form: Form, multiprocessors: int) -> Plan:
    q, k, v = tensors[:3]
    cu = form.cu_seqlens_q
    tokens = _per_token(tensors)
    return _plan_for(
        q.shape, k.shape, form.strict, tokens, v.dtype == torch.float16,
        0 if cu is None else cu.shape[0], multiprocessors, _inside(tensors, form),
    )  # fmt: skip


def _inside(tensors: tuple[Tensor, ...], form: Form) -> bool:
    """Whether values become fp16 in shared memory."""
    q, k, v = tensors[:3]
    if v.dtype != torch.int8 or _per_token(tensors):
        return False
    queries = q.shape[0] * q.shape[1] // max(1, _sequences(q, form)) * (q.shape[2] // k.shape[2])
    return queries <= _INSIDE_QUERIES.get((_width(q.shape[3], form.strict), form.strict), 0)


@functools.lru_cache(maxsize=4096)
def _plan_for(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    strict: bool,
    tokens: bool,
    half: bool,
    ends: int,
    multiprocessors: int,
    inside: bool = False,
) -> Plan:
    """``tokens``: scales per token; ``half``: fp16 values; ``ends``: size of cu_seqlens_q, 0 for
    none."""
    batch, q_len, heads, dim = q_shape
    kv_len, kv_heads = k_shape[1:3]
    width = _width(dim, strict)
    n = _TOKEN_INSTANCES.get((width, strict)) if tokens else None
    n = n or _INSTANCES[width, strict]
    group = heads // kv_heads
    sequences = ends - 1 if ends else batch
    slots = q_len // _ROWS + sequences if ends else -(-q_len // _ROWS)
    columns = heads if ends else batch * heads
    gather = group * max(1, min(_GATHERED_BYTES // max(1, 3 * kv_len * dim), columns // group))
    row = 64 if width <= 64 else 128
    wide = row * max(1, width // 128)
    splits = width // 128 if strict and width > 128 else 1  # as `Layout` of the source
    values = 128 * -(-width // splits // 64)
    shared = _ROWS * wide + n.keys * (n.k_stages * wide + n.v_stages * values) + 1024
    if inside:
        shared += 2 * n.keys * (width // splits)
    flags = ", ".join(str(flag).lower() for flag in (strict, n.q_shared, tokens, half, inside))
    name = f"attend_wgmma<{width}, {n.keys}, {n.k_stages}, {n.v_stages}, {flags}>"
    tiles = slots * columns * splits
    tail = (sequences, q_len, kv_len, heads, group, dim, slots, gather, tiles, batch)
    return Plan(kernel(name), width, n, row, min(multiprocessors, tiles), shared, inside, tail)
