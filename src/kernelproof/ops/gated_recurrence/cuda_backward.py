"""Gradients of the gated recurrence on an NVIDIA GPU: the launch of ``backward.cu``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.ops.gated_recurrence import chunked_backward
from kernelproof.ops.gated_recurrence.call import Call
from kernelproof.ops.gated_recurrence.config import gate_bits, types
from kernelproof.ops.gated_recurrence.gradients import Sums, wanted

_SOURCE = Path(__file__).parent / "backward.cu"
# The constants of the same names in backward.cu.
_CHUNK, _SUB, _CELLS, _TILE_ROWS, _WARP_COLUMNS, _SUMS = 64, 8, 16, 32, 16, 3
_MAX_WARPS = 4  # 64 columns: two blocks of them fit the shared memory of a processor
_BLOCKS_PER_PROCESSOR = 2
_SOME_BYTES = 256 * 2**20  # of memory for heads that chunks cannot take, or one head's


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
    ``grad_state`` that of the last state. Any strides. Where ``chunked_backward`` has kernels for
    the call, those of q, k and v are in the dtype of v, and what these kernels cannot read as it
    lies is copied; otherwise nothing is.

    Beside them it takes memory for a state every 64 steps, and for one partial sum of q and k for
    every 64 columns, of v for every 32 rows; ``cu_seqlens`` is read on the device only.
    """
    if cu_seqlens is not None:
        cu_seqlens = cu_seqlens.contiguous()  # the kernels know no stride of it
    gates = (gate_k, gate_v, gate_head)
    call = Call(q, k, v, *gates, initial_state, grad_state, log_gates, cu_seqlens)
    plan = chunked_backward.plan(grad, call)
    if plan is None:
        return _all_heads(_General(grad, call, scale))
    grad, call = chunked_backward.fitted(grad, call)
    results, unsafe = chunked_backward.launch(plan, grad, call, scale)
    if unsafe is not None:  # heads with gates that its products must not meet
        _some_heads(_General(grad, call, scale), unsafe, plan, results)
    return chunked_backward.finished(plan, results, call, (q.shape[3], v.shape[3]))


class _General(NamedTuple):
    """How ``backward.cu`` divides a call, whose ``last`` is the gradient of the last state."""

    grad: Tensor
    call: Call
    scale: float

    @property
    def warps(self) -> int:
        return min(_MAX_WARPS, max(1, -(-self.call.v.shape[3] // _WARP_COLUMNS)))

    @property
    def row_tiles(self) -> int:
        return -(-self.call.q.shape[3] // _TILE_ROWS)

    @property
    def column_tiles(self) -> int:
        return -(-self.call.v.shape[3] // (_WARP_COLUMNS * self.warps))

    def kernel(self, entry: str) -> Kernel:
        gate = self.call.gate
        bits = gate_bits(self.call.gate_k, self.call.gate_v, self.call.gate_head)
        return _kernel(
            self.call.q.dtype, torch.float32 if gate is None else gate.dtype,
            self.call.log_gates and gate is not None, bits, self.warps, entry,
        )  # fmt: skip

    def tensors(self) -> tuple[Tensor | None, ...]:
        *inputs, last = self.call[:8]
        return (*inputs, self.grad, last)

    def sizes(self, sequences: int) -> tuple[Any, ...]:
        """Arguments of the kernels from B to the number of heads that share one of q and k."""
        _, steps, key_heads, key_dim = self.call.q.shape
        heads, value_dim = self.call.v.shape[2:]
        strides = [n for x in self.tensors() for n in _strides(x)]
        group = heads // key_heads
        return (sequences, steps, heads, key_dim, value_dim, float(self.scale), *strides, group)

    def buffer(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self.call.v.device)


def _all_heads(general: _General) -> Sums:
    call, cu_seqlens = general.call, general.call.cu_seqlens
    batch, steps, _, key_dim = call.q.shape
    heads, value_dim = call.v.shape[2:]
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    row_tiles, column_tiles = general.row_tiles, general.column_tiles
    with_rows, with_columns = wanted(call.gate_k, call.gate_v, call.gate_head)
    # Packed steps outside of all sequences are written by nobody.
    make = torch.empty if cu_seqlens is None else torch.zeros

    def parts(tiles: int, width: int) -> Tensor:
        shape = (tiles, batch, steps, heads, width)
        return make(shape, dtype=torch.float32, device=call.v.device)

    sums = Sums(
        parts(column_tiles, key_dim),
        parts(column_tiles, key_dim),
        parts(row_tiles, value_dim),
        parts(column_tiles, key_dim) if with_rows else None,
        parts(row_tiles, value_dim) if with_columns else None,
        None if call.initial is None else general.buffer(sequences, heads, key_dim, value_dim),
    )
    items = sequences * heads * row_tiles * column_tiles
    if items > 0:
        blocks = min(items, _BLOCKS_PER_PROCESSOR * _processors(call.v))
        chunks = batch * -(-steps // _CHUNK) if cu_seqlens is None else steps // _CHUNK + sequences
        threads = 32 * general.warps
        states = chunks * heads * row_tiles * column_tiles
        general.kernel("gradients")(
            *general.tensors(), general.buffer(states, _CELLS, threads),
            general.buffer(blocks, _CHUNK // _SUB, _CELLS, threads),
            *sums, *general.sizes(sequences),
            cu_seqlens, int(cu_seqlens is not None and cu_seqlens.dtype == torch.int64), items,
            grid=blocks, block=threads, shared=shared_bytes(general.warps),
        )  # fmt: skip
    return Sums._make([*map(_added, sums[:5]), sums.initial])


def _some_heads(
    general: _General, only: Tensor, plan: chunked_backward.Plan, results: chunked_backward.Results
) -> None:
    """Write the results of the heads that ``only (N * H,)`` marks. Blocks, and so the memory, are
    few where sequences are long, since there is hardly ever anything to do."""
    call = general.call
    batch, steps, _, key_dim = call.q.shape
    heads, value_dim = call.v.shape[2:]
    row_tiles, column_tiles, threads = general.row_tiles, general.column_tiles, 32 * general.warps
    chunks = -(-steps // _CHUNK)
    rows, columns = column_tiles * steps * key_dim, row_tiles * steps * value_dim
    floats = 3 * rows + 2 * columns + (chunks + _CHUNK // _SUB) * _CELLS * threads
    blocks = min(batch * heads, _processors(call.v), max(1, _SOME_BYTES // (4 * floats)))
    by_row, by_column = (None, results.dg) if plan.transposed else (results.dg, None)
    general.kernel("gradients_of_some")(
        *general.tensors(), general.buffer(blocks, chunks, _CELLS, threads),
        general.buffer(blocks, _CHUNK // _SUB, _CELLS, threads),
        *(general.buffer(blocks, n) for n in (rows, rows, columns, rows, columns)),
        results.d_initial, *general.sizes(batch), only, batch * heads,
        *chunked_backward.of_arguments(plan, results), by_row, by_column,
        grid=blocks, block=threads, shared=shared_bytes(general.warps),
    )  # fmt: skip


def _processors(tensor: Tensor) -> int:
    count: int = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return count


def describe_backward(call: Call) -> str:
    """What `launch_backward` would run for a gradient of y that lies as v does, in words."""
    plan = chunked_backward.plan(call.v, call)
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
    element: torch.dtype, gate: torch.dtype, log_gates: bool, gates: int, warps: int, entry: str
) -> Kernel:
    arguments = [*types(element, gate, log_gates), str(gates), str(warps)]
    return Kernel(_SOURCE, f"{entry}<Config<{', '.join(arguments)}>>")
