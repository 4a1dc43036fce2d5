"""CUDA launcher, and the kernel as a kernelproof candidate."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kernelproof.cuda import Kernel
from kernelproof.ops.int8_attention.contract import check, unit_stride

SOURCE = Path(__file__).parent / "kernel.cu"
LOG2_E = 1.4426950408889634

_INSTANCES = (32, 64, 96, 128, 192, 256)  # head dimensions that `attend` is compiled for
_GRID_LIMIT = 65_535  # blocks in y and z (CUDA C++ guide, table of compute capabilities)
_INT_LIMIT = 2**30  # rows and strides below this keep the kernel's 32-bit arithmetic exact
_ROW_WARPS = 4  # of `attend_rows`
_BLOCK_WARPS, _BLOCK_ROWS, _BLOCK_KEYS = 4, 64, 64  # of `attend_blocks`


class Plan(NamedTuple):
    """How one combination of shapes and strides is launched."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: int
    shared: int
    tail: tuple[int | float, ...]  # the arguments behind the seven pointers


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
    """`int8_attention` on CUDA tensors, on the current stream; arguments and errors as there."""
    check(q, k, v, q_scale, k_scale, v_scale)
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    if out.numel() == 0:
        return out
    if k.numel() == 0:
        return out.zero_()
    tensors = (
        unit_stride(q), unit_stride(k), unit_stride(v),
        q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous(), out,
    )  # fmt: skip
    if q.device.index == torch.cuda.current_device():
        _launch(tensors, bool(causal), float(scale))
    else:
        with torch.cuda.device(q.device):
            _launch(tensors, bool(causal), float(scale))
    return out


def _launch(tensors: Sequence[Tensor], causal: bool, scale: float) -> None:
    batch = tensors[0].shape[0]
    for start in range(0, batch, _GRID_LIMIT):
        part = tensors
        if batch > _GRID_LIMIT:
            rows = slice(start, start + _GRID_LIMIT)
            q, k, v, out = (tensors[i][rows] for i in (0, 1, 2, 6))
            part = (q, k, v, *tensors[3:6], out)
        q, k, v = part[:3]
        address = q.data_ptr() | k.data_ptr() | v.data_ptr()
        plan = plan_for(
            q.shape, k.shape, q.stride(), k.stride(), v.stride(), address & 15, causal, scale,
            processors(q.device.index),
        )  # fmt: skip
        plan.kernel(*part, *plan.tail, grid=plan.grid, block=plan.block, shared=plan.shared)


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
) -> Plan:
    """The launch for non-empty inputs. ``address``: the low bits of the three data pointers."""
    _, q_len, heads, dim = q_shape
    kv_len = k_shape[1]
    small = heads <= _GRID_LIMIT and max(q_len, kv_len) < _INT_LIMIT
    small = small and max(abs(s[1]) for s in (q_stride, k_stride, v_stride)) < _INT_LIMIT
    arguments = (q_shape, k_shape, q_stride, k_stride, v_stride, address, causal, scale)
    if dim <= _INSTANCES[-1] and small:
        return _tile_plan(*arguments, multiprocessors)
    return _row_plan(*arguments)


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
        dim == width
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
        return Plan(
            kernel(f"attend_blocks<{width}, {str(causal).lower()}>"),
            (blocks, heads, batch),
            32 * _BLOCK_WARPS,
            2 * _BLOCK_KEYS * (width + (64 if width % 128 == 0 else 0) + width + 16),
            tail,
        )
    return Plan(
        kernel(f"attend<{width}, {warps}, {flags}>"),
        (tiles, heads, batch),
        32 * warps,
        warps * 16 * (4 * (width + 4) + 8),
        tail,
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


def _row_plan(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    q_stride: tuple[int, ...],
    k_stride: tuple[int, ...],
    v_stride: tuple[int, ...],
    address: int,
    causal: bool,
    scale: float,
) -> Plan:
    """`attend_rows`: one warp per query row; wide heads, and what 32-bit arithmetic cannot hold."""
    batch, q_len, heads, dim = q_shape
    kv_len, kv_heads = k_shape[1], k_shape[2]
    rows = batch * q_len * heads
    odd = address | dim
    for stride in (q_stride, k_stride):
        odd |= stride[0] | stride[1] | stride[2]
    tail = (
        rows, q_len, kv_len, heads, heads // kv_heads, dim, int(odd % 4 == 0), int(causal),
        q_stride[0], q_stride[2], q_stride[1],
        k_stride[0], k_stride[2], k_stride[1],
        v_stride[0], v_stride[2], v_stride[1],
        scale * LOG2_E,
    )  # fmt: skip
    return Plan(kernel("attend_rows"), (-(-rows // _ROW_WARPS), 1, 1), 32 * _ROW_WARPS, 0, tail)


class ModelNew(nn.Module):
    """The problem's ``Model`` on the CUDA kernel."""

    def __init__(self, causal: bool = True) -> None:
        super().__init__()
        self.causal = causal

    def forward(
        self,
        q_q: Tensor,
        k_q: Tensor,
        v_q: Tensor,
        q_scale: Tensor,
        k_scale: Tensor,
        v_scale: Tensor,
    ) -> Tensor:
        scale = 1 / math.sqrt(max(q_q.shape[3], 1))
        return launch(q_q, k_q, v_q, q_scale, k_scale, v_scale, self.causal, scale)
