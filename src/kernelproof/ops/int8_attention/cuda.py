"""CUDA launcher, and the kernel as a kernelproof candidate."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.cuda_forms import undisturbed
from kernelproof.ops.int8_attention import cuda_general, cuda_quick, cuda_wgmma
from kernelproof.ops.int8_attention.contract import (
    OUT_DTYPES,
    PLAIN,
    Form,
    check,
)
from kernelproof.ops.int8_attention.cuda_general import Step, how
from kernelproof.ops.int8_attention.model import ProblemModel

SOURCE = Path(__file__).parent / "kernel.cu"  # includes common.cuh
LOG2_E = 1.4426950408889634

_INSTANCES = (32, 64, 96, 128, 192, 256)  # head dimensions that `attend` is compiled for
GRID_LIMIT = 65_535  # blocks in y and z (CUDA C++ guide, table of compute capabilities)
_INT_LIMIT = 2**30  # rows and strides below this keep the kernel's 32-bit arithmetic exact
# Rows that share a key head, and keys, up to and from which `attend_general` takes over.
_DECODE_ROWS, _DECODE_KEYS = 64, 1024
_BLOCK_WARPS, _BLOCK_ROWS, _BLOCK_KEYS = 4, 64, 64  # of `attend_blocks`


class Plan(NamedTuple):
    """How one combination of shapes and strides is launched."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    shared: int
    tail: tuple[int | float, ...]  # the arguments behind the pointers and out_kind
    blocks: bool  # whether it is `attend_blocks`, which takes every output and accuracy


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
) -> Tensor:
    """`int8_attention` on CUDA tensors with no form asked for, on the current stream; arguments and
    errors as there."""
    if undisturbed():
        done = cuda_quick.quick(q, k, v, q_scale, k_scale, v_scale, causal, scale)
        if isinstance(done, Tensor):
            return done
    if not (v.dtype == torch.int8 and q_scale.dim() == k_scale.dim() == v_scale.dim() == 1):
        return launch_form(q, k, v, q_scale, k_scale, v_scale, causal, scale, PLAIN)[0]
    check(q, k, v, q_scale, k_scale, v_scale)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out
    if k.numel() == 0:
        return out.zero_()
    tensors = (q, k, v, q_scale, k_scale, v_scale, out)
    if q.device.index == torch.cuda.current_device():
        _launch(tensors, bool(causal), float(scale))
    else:
        with torch.cuda.device(q.device):
            _launch(tensors, bool(causal), float(scale))
    cuda_quick.keep(tensors[:6], causal, scale, PLAIN, out)
    return out


def launch_form(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    v_scale: Tensor,
    causal: bool,
    scale: float,
    form: Form,
) -> tuple[Tensor, Tensor | None]:
    """`int8_attention` on CUDA tensors: the output, and the lse where ``form`` asks for it."""
    tensors = (q, k, v, q_scale, k_scale, v_scale)
    if is_dense(tensors, form) and form == PLAIN._replace(block=form.block):
        return launch(*tensors, causal, scale), None
    check(*tensors, form)
    out = torch.empty(q.shape, dtype=form.out_dtype, device=q.device)
    lse = None
    if form.with_lse:
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    if out.numel() == 0 and (lse is None or lse.numel() == 0):
        return out, lse
    if k.shape[0] == 0 or k.shape[1] == 0:
        return out.zero_(), None if lse is None else lse.fill_(-math.inf)
    if q.device.index == torch.cuda.current_device():
        _launch_form(tensors, bool(causal), float(scale), form, out, lse)
    else:
        with torch.cuda.device(q.device):
            _launch_form(tensors, bool(causal), float(scale), form, out, lse)
    return out, lse


def is_dense(tensors: Sequence[Tensor], form: Form) -> bool:
    """Whether the kernels of kernel.cu take the inputs: dense, scales per head, int8 values."""
    return (
        form.cu_seqlens_q is None
        and form.kv_lens is None
        and tensors[2].dtype == torch.int8
        and all(scale.dim() == 1 for scale in tensors[3:6])
    )


def _launch_form(
    tensors: tuple[Tensor, ...],
    causal: bool,
    scale: float,
    form: Form,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    many = processors(out.device.index)
    if not cuda_wgmma.why_not(tensors, form, many):
        cuda_wgmma.run(tensors, causal, scale, form, out, lse, many)
        return
    plan = dense_plan(tensors, causal, scale, form, many)
    if plan is None:
        cuda_general.run(tensors, causal, scale, form, out, lse, many)
        return
    _make(dense_step(tensors, out, lse, plan))


def dense_step(tensors: Sequence[Tensor], out: Tensor, lse: Tensor | None, plan: Plan) -> Step:
    """The launch of a kernel of kernel.cu. ``tensors``: q, k, v and their scales."""
    q, k, v, *scales = tensors
    more = (lse, OUT_DTYPES.index(out.dtype)) if plan.blocks else ()
    args = (q, k, v, *(s.contiguous() for s in scales), out, *more, *plan.tail)
    # `attend` waits for the previous kernel itself.
    early = not plan.blocks and cuda_general.launches_overlap(q.device.index)
    return Step(plan.kernel, args, how(plan.grid, plan.block, plan.shared, early))


def _make(step: Step) -> None:
    step.kernel.again(step.args[0].get_device(), step.args, step.how)


def dense_plan(
    tensors: tuple[Tensor, ...], causal: bool, scale: float, form: Form, multiprocessors: int
) -> Plan | None:
    """The launch of a kernel of kernel.cu where one of them is the choice, else None."""
    if not is_dense(tensors, form) or tensors[0].shape[0] > GRID_LIMIT:
        return None
    plan = plan_of(tensors[:3], causal, scale, multiprocessors, form.strict)
    # `attend` writes fp32 and no lse. It computes every accuracy as "strict", faster than
    # `attend_general` any.
    plain = form.out_dtype == torch.float32 and not form.with_lse
    return plan if plan is not None and (plan.blocks or plain) else None


def explanation(tensors: tuple[Tensor, ...], causal: bool, scale: float, form: Form) -> list[str]:
    """Lines for `explain`."""
    q, k = tensors[:2]
    many = processors(q.device.index)
    if q.numel() == 0 or k.numel() == 0:
        return ["nothing to compute: no queries, no keys, or a head dimension of 0"]
    why_not = cuda_wgmma.why_not(tensors, form, many)
    if not why_not:
        return cuda_wgmma.explanation(tensors, form, many)
    passed = f"not attend_wgmma: {why_not}"
    if form == PLAIN._replace(block=form.block) and is_dense(tensors, form):
        plan = plan_of(tensors[:3], causal, scale, many)  # parts of any batch
    else:
        plan = dense_plan(tensors, causal, scale, form, many)
    if plan is not None:
        return [
            f"CUDA kernel {plan.kernel.name}, for dense tensors with scales per head and int8 "
            f"values: grid {plan.grid}, {plan.block} threads, {plan.shared} bytes of shared memory",
            f"probabilities as {cuda_general.PRECISION[form.strict or not plan.blocks]}",
            passed,
        ]
    return [*cuda_general.explanation(tensors, form, many), passed]


def plan_of(
    tensors: Sequence[Tensor],
    causal: bool,
    scale: float,
    multiprocessors: int,
    strict: bool = True,
) -> Plan | None:
    q, k, v = tensors
    address = q.data_ptr() | k.data_ptr() | v.data_ptr()
    return plan_for(
        q.shape, k.shape, q.stride(), k.stride(), v.stride(), address & 15, causal, scale,
        multiprocessors, strict,
    )  # fmt: skip


def _launch(tensors: Sequence[Tensor], causal: bool, scale: float) -> None:
    many = processors(tensors[0].device.index)
    given = tuple(tensors[:6])
    if not cuda_wgmma.why_not(given, PLAIN, many):
        cuda_wgmma.run(given, causal, scale, PLAIN, tensors[6], None, many)
        return
    batch = tensors[0].shape[0]
    for start in range(0, batch, GRID_LIMIT):
        part = tensors
        if batch > GRID_LIMIT:
            rows = slice(start, start + GRID_LIMIT)
            q, k, v, out = (tensors[i][rows] for i in (0, 1, 2, 6))
            part = (q, k, v, *tensors[3:6], out)
        plan = plan_of(part[:3], causal, scale, many)
        if plan is None:
            cuda_general.run(tuple(part[:6]), causal, scale, PLAIN, part[6], None, many)
        else:
            _make(dense_step(part[:6], part[6], None, plan))


@functools.cache
def processors(device: int) -> int:
    """Streaming multiprocessors of the GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def kernel(name: str) -> Kernel:
    return Kernel(SOURCE, name)


@functools.lru_cache(maxsize=4096)
def plan_for(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
    causal: bool,
    scale: float,
    multiprocessors: int,
    strict: bool = True,
) -> Plan | None:
    """The launch for non-empty dense inputs, or None where `cuda_general` serves them: wide heads,
    an innermost stride that is not 1, what 32-bit arithmetic cannot hold, and a few queries against
    many keys, which it shares out. Where not ``strict``, `attend_blocks` is the one that can.
    ``address``: the low bits of the three data pointers."""
    _, q_len, heads, dim = q_shape
    kv_len = k_shape[1]
    small = heads <= GRID_LIMIT and max(q_len, kv_len) < _INT_LIMIT
    small = small and max(abs(s[1]) for s in (q_stride, k_stride, v_stride)) < _INT_LIMIT
    unit = dim == 1 or q_stride[3] == k_stride[3] == v_stride[3] == 1
    decode = q_len * (heads // k_shape[2]) <= _DECODE_ROWS and kv_len >= _DECODE_KEYS
    if dim > _INSTANCES[-1] or not small or not unit or decode:
        return None
    return _tile_plan(
        q_shape, k_shape, q_stride, k_stride, v_stride, address, causal, scale, multiprocessors,
        strict,
    )  # fmt: skip


def _tile_plan(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
    causal: bool,
    scale: float,
    multiprocessors: int,
    strict: bool,
) -> Plan:
    """`attend`: 16 query rows per block, the keys shared out over its warps.

    Where blocks of 64 rows fill the GPU: `attend_blocks`, which reads each key a quarter as often.
    """
    batch, q_len, heads, dim = q_shape
    kv_len, kv_heads = k_shape[1], k_shape[2]
    width = next(size for size in _INSTANCES if size >= dim)
    # The widest vector load of the instance (struct Widths in kernel.cu).
    vector = 16 if width % 64 == 0 else 8
    odd = address
    for stride in (q_stride, k_stride, v_stride):
        odd |= stride[0] | stride[1] | stride[2]
    exact = dim == width and odd % vector == 0
    blocks = -(-q_len // _BLOCK_ROWS)
    use_blocks = (
        dim % 16 == 0
        and odd % 16 == 0
        and kv_len > 2 * _BLOCK_KEYS
        and blocks * heads * batch >= multiprocessors
    )
    tiles, steps = -(-q_len // 16), -(-kv_len // 16)
    # Loads byte by byte set the pace of inexact instances: one choice serves them all. Where each
    # warp loops, the division that finds the key head does not count.
    warps, only = 4, False
    if exact:
        warps, only = _warps(width, steps, tiles * heads * batch, multiprocessors)
    grouped = heads != kv_heads or not only
    flags = ", ".join(str(flag).lower() for flag in (exact, causal, grouped, only))
    out_token = heads * dim
    tail = (
        q_len, kv_len, dim, heads // kv_heads,
        q_stride[0], q_stride[2], q_stride[1],
        k_stride[0], k_stride[2], k_stride[1],
        v_stride[0], v_stride[2], v_stride[1],
        q_len * out_token, out_token, scale * LOG2_E,
    )  # fmt: skip
    if use_blocks:
        blocks_flags = ", ".join(str(flag).lower() for flag in (causal, strict, dim < width))
        return Plan(
            kernel(f"attend_blocks<{width}, {blocks_flags}>"),
            (blocks, heads, batch),
            32 * _BLOCK_WARPS,
            2 * _BLOCK_KEYS * (width + (64 if width % 128 == 0 else 0) + width + 16),
            tail,
            True,
        )
    return Plan(
        kernel(f"attend<{width}, {warps}, {flags}>"),
        (tiles, heads, batch),
        32 * warps,
        warps * 16 * (4 * (width + 4) + 8),
        tail,
        False,
    )


def _warps(width: int, steps: int, blocks: int, multiprocessors: int) -> tuple[int, bool]:
    """Warps per block, and whether each takes one step of 16 keys only.

    Few steps: one warp each. Else as few warps as still fill the GPU (about 16 per multiprocessor),
    since every further warp costs shared memory and a longer merge. Wide heads take at most 4 or 8
    warps, for the registers and for the shared memory of GPUs with 99 KB per block.
    """
    most = 4 if width > 128 else 8
    if steps <= most:
        return steps, True
    warps = 4
    limit = 4 if width > 128 else 8 if width > 64 else 16
    while warps < min(limit, steps) and blocks * warps < 16 * multiprocessors:
        warps *= 2
    return warps, False


class ModelNew(ProblemModel):
    """The ``Model`` of problem.py and of problem_forms.py on the CUDA kernels."""

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        result: Tensor | tuple[Tensor, Tensor] = self.run(launch_form, tensors)
        return result
