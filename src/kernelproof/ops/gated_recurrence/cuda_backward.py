"""Gradients of the gated recurrence on an NVIDIA GPU: the launch of ``backward.cu``."""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.ops.gated_recurrence import chunked_backward
from kernelproof.ops.gated_recurrence.config import gate_bits, types
from kernelproof.ops.gated_recurrence.gradients import Sums, wanted

_SOURCE = Path(__file__).parent / "backward.cu"
# The constants of the same names in backward.cu.
_CHUNK, _SUB, _CELLS, _TILE_ROWS, _WARP_COLUMNS, _SUMS = 64, 8, 16, 32, 16, 3
_MAX_WARPS = 4  # 64 columns: two blocks of them fit the shared memory of a processor
_BLOCKS_PER_PROCESSOR = 2


def launch_backward(
    grad: Tensor,
    grad_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    *,
    log_gates: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Sums:
    """The sums that gradients are made of; ``grad (B, T, H, V)`` is that of y, in v's dtype, and
    ``grad_state`` that of the last state. Any strides; nothing is copied. Where
    ``chunked_backward`` has kernels for the call, those of q, k and v are in the dtype of v.

    Beside them it takes memory for a state every 64 steps, and for one partial sum of q and k for
    every 64 columns, of v for every 32 rows; ``cu_seqlens`` is read on the device only.
    """
    tensors = (q, k, v, gate_k, gate_v, gate_head)
    states = (initial_state, grad_state)
    plan = chunked_backward.plan(grad, *tensors, *states, log_gates, cu_seqlens)
    if plan is None:
        parts = _parts(grad, grad_state, *tensors, scale, initial_state, log_gates, cu_seqlens)
        return Sums._make([*map(_added, parts[:5]), parts.initial])
    sums, unsafe = chunked_backward.launch(plan, grad, *tensors, *states, scale)
    if unsafe is not None:  # heads with gates that its products must not meet
        parts = _parts(
            grad, grad_state, *tensors, scale, initial_state, log_gates, cu_seqlens, unsafe
        )  # fmt: skip
        chunked_backward.merge(plan, unsafe, parts, sums)
    return chunked_backward.finished(plan, sums, gate_v, gate_head, log_gates)


def _parts(
    grad: Tensor,
    grad_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    log_gates: bool,
    cu_seqlens: Tensor | None,
    only: Tensor | None = None,
) -> Sums:
    """By ``backward.cu``: the sums over tiles, which are their first axis. ``only (N * H,)``: the
    heads of sequences that are wanted; what belongs to others is not written."""
    batch, steps, key_heads, key_dim = q.shape
    heads, value_dim = v.shape[2:]
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    warps = min(_MAX_WARPS, max(1, -(-value_dim // _WARP_COLUMNS)))
    row_tiles = -(-key_dim // _TILE_ROWS)
    column_tiles = -(-value_dim // (_WARP_COLUMNS * warps))
    with_rows, with_columns = wanted(gate_k, gate_v, gate_head)

    def buffer(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=v.device)

    # Packed steps outside of all sequences are written by nobody.
    make = torch.empty if cu_seqlens is None else torch.zeros

    def parts(tiles: int, width: int) -> Tensor:
        shape = (tiles, batch, steps, heads, width)
        return make(shape, dtype=torch.float32, device=v.device)

    sums = Sums(
        parts(column_tiles, key_dim),
        parts(column_tiles, key_dim),
        parts(row_tiles, value_dim),
        parts(column_tiles, key_dim) if with_rows else None,
        parts(row_tiles, value_dim) if with_columns else None,
        None if initial_state is None else buffer(sequences, heads, key_dim, value_dim),
    )
    items = sequences * heads * row_tiles * column_tiles
    if items > 0:
        processors = torch.cuda.get_device_properties(v.device).multi_processor_count
        blocks = min(items, _BLOCKS_PER_PROCESSOR * processors)
        chunks = batch * -(-steps // _CHUNK) if cu_seqlens is None else steps // _CHUNK + sequences
        threads = 32 * warps
        tensors = (q, k, v, gate_k, gate_v, gate_head, initial_state, grad, grad_state)
        strides = [n for x in tensors for n in _strides(x)]
        gate = next((g for g in (gate_k, gate_v, gate_head) if g is not None), None)
        kernel = _kernel(
            q.dtype, torch.float32 if gate is None else gate.dtype,
            log_gates and gate is not None, gate_bits(gate_k, gate_v, gate_head), warps,
        )  # fmt: skip
        kernel(
            *tensors, buffer(chunks * heads * row_tiles * column_tiles, _CELLS, threads),
            buffer(blocks, _CHUNK // _SUB, _CELLS, threads), *sums, sequences, steps, heads,
            key_dim, value_dim, float(scale), *strides, heads // key_heads, cu_seqlens,
            int(cu_seqlens is not None and cu_seqlens.dtype == torch.int64), items,
            only,
            grid=blocks, block=threads, shared=shared_bytes(warps),
        )  # fmt: skip
    return sums


def describe_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    log_gates: bool,
    cu_seqlens: Tensor | None,
) -> str:
    """What `launch_backward` would run for a gradient of y that lies as v does, in words."""
    call = (v, q, k, v, gate_k, gate_v, gate_head, None, None, log_gates, cu_seqlens)
    plan = chunked_backward.plan(*call)
    if plan is not None:
        return chunked_backward.describe(plan)
    return f"backward.cu, which runs the recurrence again from states kept every {_CHUNK} steps"


def shared_bytes(warps: int) -> int:
    """The size of ``Shared`` in backward.cu."""
    columns = _WARP_COLUMNS * warps
    floats = 3 * _TILE_ROWS + 4 * columns + _SUMS * warps * _TILE_ROWS + _CELLS * 32 * warps
    return 4 * _SUB * floats


def _added(parts: Tensor | None) -> Tensor | None:
    """The sum over tiles, in their order."""
    if parts is None:
        return None
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def _strides(tensor: Tensor | None) -> list[int]:
    return [0] * 4 if tensor is None else [*tensor.stride(), 0][:4]


@functools.cache
def _kernel(
    element: torch.dtype, gate: torch.dtype, log_gates: bool, gates: int, warps: int
) -> Kernel:
    arguments = [*types(element, gate, log_gates), str(gates), str(warps)]
    return Kernel(_SOURCE, f"gradients<Config<{', '.join(arguments)}>>")
