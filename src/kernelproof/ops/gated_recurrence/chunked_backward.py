"""Gradients of the gated recurrence on tensor cores: which calls take ``backward_chunks.cu``, and
its launches.

Its kernels are written for gates of rows of the state. Gates of columns are those of rows of the
transposed state: v and k then change places, and q and the gradient of y.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kernelproof.cuda import Kernel
from kernelproof.ops.gated_recurrence.call import Call
from kernelproof.ops.gated_recurrence.config import gate_bits, types
from kernelproof.ops.gated_recurrence.gradients import Sums

_SOURCE = Path(__file__).parent / "backward_chunks.cu"
_SOURCE_STATES = Path(__file__).parent / "backward_states.cu"
_CHUNK, _TILE = 64, 64  # steps; rows and columns of the state, as in backward_chunks.cuh
# Below so many steps the general kernel is the faster one.
_FEWEST_STEPS = 64
_FEWEST_STEPS_COPIED = 256  # and where widths are not multiples of 64, which takes copies
_SCAN_THREADS = 256
_MAX_INT = 2**31 - 1
_MAX_GRID = 65535  # blocks along the second axis and the third
_FARTHEST = 2**32 // (_CHUNK * 4)  # elements from one step to the next: 64 are 32 bits of bytes


@dataclass(frozen=True)
class Plan:
    """What the launches need besides addresses."""

    gate: str  # its type in the sources
    gates: int  # 1: of rows, 2: of the head
    transposed: bool
    batch: int
    steps: int
    heads: int
    rows: int
    columns: int
    row_group: int
    column_group: int
    strides: bytes

    @property
    def parts(self) -> int:
        """Times 64: rows of a block."""
        return 2 if self.rows % (2 * _TILE) == 0 else 1

    @property
    def groups(self) -> int:
        """Blocks that share the rows of a state."""
        return self.rows // (_TILE * self.parts)

    @property
    def chains(self) -> int:
        return self.batch * self.heads

    @property
    def chunks(self) -> int:
        return -(-self.steps // _CHUNK)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block: SHARED in backward_chunks.cu."""
        tile, quarters = 2 * _TILE * _TILE, 2 * self.parts
        stages = 2 if self.parts == 2 and not self.transposed else 1
        stage = stages * 2 * (1 + self.parts) * tile
        part = (7 if self.transposed else 6) * tile + 34 * 4 * _TILE
        within = max(10 * 512 + 8 * 272, (quarters - 1) * 4 * 6 * 32 * 4)
        return stage + self.parts * part + 10 * 512 + within

    def strips(self, processors: int) -> int:
        """Blocks that share the chunks of a head: such that all blocks together take the fewest
        turns, and few of them."""
        slots = processors * (2 if self.parts == 1 else 1)
        return _strips(self.chunks, self.chains * self.groups, slots)

    def kernel(self) -> Kernel:
        transposed = "true" if self.transposed else "false"
        arguments = f"{self.gate}, {self.gates}, {self.parts}, {transposed}, {self.shared}"
        return _kernel(_SOURCE, f"gradients_in_chunks<Config<{arguments}>>")


def plan(grad: Tensor, call: Call) -> Plan | None:
    """How ``backward_chunks.cu`` would run this call once `fitted`, None where it cannot, or not
    well. ``call.last``: the gradient of the last state."""
    q, v, gate = call.q, call.v, call.gate
    if q.dtype != torch.bfloat16 or call.cu_seqlens is not None or q.shape[1] < _FEWEST_STEPS:
        return None
    rows, columns = _up(q.shape[3], _TILE), _up(v.shape[3], _TILE)
    if (rows, columns) != (q.shape[3], v.shape[3]) and q.shape[1] < _FEWEST_STEPS_COPIED:
        return None
    return _plan(
        v.device.index,
        torch.float32 if gate is None else gate.dtype,
        call.log_gates and gate is not None,
        (*q.shape[:3], rows),
        (*v.shape[:3], columns),
        *(
            None if x is None else x.stride() if _fits(x, *form) else _contiguous(x.shape, *form)
            for x, form in zip((grad, *call[:8]), _forms(rows, columns), strict=True)
        ),
    )


def fitted(grad: Tensor, call: Call) -> tuple[Tensor, Call]:
    """With copies of those that the kernels cannot read as they lie, and zeros beside rows and
    columns up to the next multiple of 64."""
    forms = _forms(*(_up(x.shape[3], _TILE) for x in (call.q, call.v)))
    new: list[Any] = [
        x if x is None or _fits(x, *form) else _copy(x, form[0])
        for x, form in zip((grad, *call[:8]), forms, strict=True)
    ]
    return new[0], Call(*new[1:])._replace(log_gates=call.log_gates)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _forms(rows: int, columns: int) -> list[tuple[tuple[int, ...], int]]:
    """Of the gradient of y and the first eight of a call: sizes of its last axes, and how many
    elements are read at once."""
    k, v, states = ((rows,), 8), ((columns,), 8), ((rows, columns), 1)
    return [v, k, k, v, (k[0], 2), (v[0], 2), ((), 1), states, states]


def _fits(x: Tensor, widths: tuple[int, ...], unit: int) -> bool:
    if x.shape[x.ndim - len(widths) :] != widths:
        return False
    outer = zip(x.shape[:-1], x.stride()[:-1], strict=True)
    return unit == 1 or (
        x.stride(-1) == 1
        and all(n <= 1 or s % unit == 0 for n, s in outer)
        and x.data_ptr() % (unit * x.element_size()) == 0
    )


def _contiguous(shape: Sequence[int], widths: tuple[int, ...], _: int) -> tuple[int, ...]:
    sizes = [*shape[: len(shape) - len(widths)], *widths]
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _copy(x: Tensor, widths: tuple[int, ...]) -> Tensor:
    more = [n for had, n in zip(x.shape[-len(widths) :], widths, strict=True) for n in (n - had, 0)]
    if not any(more):
        return x.clone(memory_format=torch.contiguous_format)
    return torch.nn.functional.pad(x, more[::-1])


@functools.lru_cache(maxsize=1024)
def _plan(
    device: int,
    gate: torch.dtype,
    log_gates: bool,
    keys: Sequence[int],
    values: Sequence[int],
    *strides: Sequence[int] | None,
) -> Plan | None:
    batch, steps, key_heads, key_dim = keys
    heads, value_dim = values[2:]
    if torch.cuda.get_device_capability(device) < (9, 0):
        return None
    grad, q, k, v, gate_k, gate_v, gate_head, initial, last = strides
    if not key_dim or not value_dim or (gate_k is not None and gate_v is not None):
        return None
    if any(s is not None and s[1] > _FARTHEST for s in (grad, q, k, v, gate_k, gate_v, gate_head)):
        return None
    matrix = (heads * key_dim * value_dim, key_dim * value_dim, value_dim, 1)
    states = [(0, 0, 0, 0) if s is None else tuple(s) for s in (initial, last, matrix)]
    transposed = gate_v is not None
    if transposed:
        ordered = [grad, v, k, q, gate_v, gate_head]
        states = [(s[0], s[1], s[3], s[2]) for s in states]
    else:
        ordered = [q, k, v, grad, gate_k, gate_head]
    rows, columns = (value_dim, key_dim) if transposed else (key_dim, value_dim)
    group = heads // key_heads
    numbers = [x for s in ordered for x in ((*s, 0)[:3] if s is not None else (0, 0, 0))]
    numbers += [x for s in states for x in s]
    found = Plan(
        types(torch.bfloat16, gate, log_gates)[1],
        gate_bits(ordered[4], ordered[5]),
        transposed,
        batch,
        steps,
        heads,
        rows,
        columns,
        1 if transposed else group,
        group if transposed else 1,
        struct.pack(f"<{len(numbers)}q", *numbers),
    )
    tiles = found.chains * max(found.chunks * rows // _TILE, rows * columns // 1024)
    blocks = max(batch, heads * (rows // _TILE))
    if blocks > _MAX_GRID or heads * rows > _FARTHEST:
        return None
    return found if max(tiles, steps) < _MAX_INT - _CHUNK else None


class Results(NamedTuple):
    """What the kernels write, by the names that they have there."""

    dk: Tensor  # (B, T, H, rows)
    dv: Tensor  # (B, T, H, columns)
    other: Tensor  # dq (B, T, H, rows), or y (B, T, H, columns) where the state is transposed
    dg: Tensor | None  # (B, T, H, rows), float32
    d_initial: Tensor | None
    dv_parts: Tensor | None  # (groups, B, T, H, columns), float32
    y_parts: Tensor | None


def launch(plan: Plan, grad: Tensor, call: Call, scale: float) -> tuple[Results, Tensor | None]:
    """The results for a call that is `fitted`, and which heads of which sequences (N * H,) are left
    to the general kernel; None where there can be none."""
    p, q, k, v = plan, call.q, call.k, call.v
    gate, gate_head = call.gate_v if p.transposed else call.gate_k, call.gate_head
    operands = (grad, v, k, q) if p.transposed else (q, k, v, grad)
    states, gradients = (v.new_empty(p.chains * p.chunks * p.rows * p.columns) for _ in range(2))
    decays = v.new_empty(p.chains * p.chunks * p.rows, dtype=torch.float32)
    unsafe = torch.zeros(p.chains, dtype=torch.int32, device=v.device)
    results = _results(p, v, call.initial)
    sizes = (p.steps, p.heads, p.rows, p.columns)
    forms = (p.row_group, p.column_group, float(scale), p.strides)
    _kernel(_SOURCE_STATES, f"ends<{p.gate}, {p.gates}>")(
        *operands, gate, gate_head, states, gradients, decays, unsafe, *sizes, *forms,
        grid=(p.chunks, p.heads * (p.rows // _TILE), p.batch), block=128,
        shared=6 * 2 * _TILE * _TILE + 1024,
    )  # fmt: skip
    _kernel(_SOURCE_STATES, "scan")(
        call.initial, call.last, states, gradients, decays, results.d_initial, *sizes, p.strides,
        grid=2 * p.chains * (p.rows * p.columns // 8 // _SCAN_THREADS), block=_SCAN_THREADS,
    )  # fmt: skip
    p.kernel()(
        *operands, gate, gate_head, states, gradients, unsafe, results.other, results.dk,
        results.dv, results.dv_parts, results.y_parts, results.dg, *sizes, *forms,
        grid=(p.strips(_processors(v)), p.heads * p.groups, p.batch),
        block=256 * p.parts, shared=p.shared,
    )  # fmt: skip
    if p.groups > 1:
        for part, to in ((results.dv_parts, results.dv), (results.y_parts, results.other)):
            if part is not None and p.groups == 2:
                torch.add(part[0], part[1], out=to)  # rounded as it is written
            elif part is not None:
                to.copy_(part.sum(0))
    return results, unsafe if p.gates else None


def _results(p: Plan, v: Tensor, initial: Tensor | None) -> Results:
    def like(width: int, dtype: torch.dtype = v.dtype) -> Tensor:
        return v.new_empty((p.batch, p.steps, p.heads, width), dtype=dtype)

    def parts() -> Tensor:
        shape = (p.groups, p.batch, p.steps, p.heads, p.columns)
        return v.new_empty(shape, dtype=torch.float32)

    shape = (p.batch, p.heads, p.columns, p.rows) if p.transposed else (
        p.batch, p.heads, p.rows, p.columns)  # fmt: skip
    return Results(
        like(p.rows),
        like(p.columns),
        like(p.columns if p.transposed else p.rows),
        like(p.rows, torch.float32) if p.gates else None,
        None if initial is None else v.new_empty(shape, dtype=torch.float32),
        parts() if p.groups > 1 else None,
        parts() if p.groups > 1 and p.transposed else None,
    )


def of_arguments(p: Plan, results: Results) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    if p.transposed:
        return results.other, results.dv, results.dk
    return results.other, results.dk, results.dv


def finished(plan: Plan, results: Results, call: Call, sizes: tuple[int, int]) -> Sums:
    """``results`` as sums; ``sizes``: K and V without what was put beside them. For a gate of the
    head beside one of columns, ``by_row`` has the width of those: only its sum is the same."""
    by_row, by_column = results.dg, None
    if plan.transposed:
        by_row, by_column = None, results.dg
        if call.gate_head is not None:
            assert call.gate_v is not None and by_column is not None
            value = call.gate_v.float().exp() if call.log_gates else call.gate_v.float()
            by_row = by_column * value
    return _narrow(Sums(*of_arguments(plan, results), by_row, by_column, results.d_initial), *sizes)


def _narrow(sums: Sums, key_dim: int, value_dim: int) -> Sums:
    q, k, v, by_row, by_column, initial = sums
    row = value_dim if by_column is not None else key_dim
    return Sums(
        q[..., :key_dim],
        k[..., :key_dim],
        v[..., :value_dim],
        None if by_row is None else by_row[..., :row],
        None if by_column is None else by_column[..., :value_dim],
        None if initial is None else initial[..., :key_dim, :value_dim],
    )


def describe(plan: Plan) -> str:
    """What `launch` would run, in words."""
    return (
        f"backward_chunks.cu on tensor cores, {plan.chains * plan.chunks * plan.groups} blocks of "
        f"{256 * plan.parts} threads and {plan.shared:,} bytes of shared memory, from the states "
        f"before every {_CHUNK} steps and the gradients by those after them"
        + ("; backward.cu for heads with gates above 1.875" if plan.gates else "")
    )


@functools.lru_cache(maxsize=1024)
def _strips(chunks: int, blocks: int, slots: int) -> int:
    def turns(strips: int) -> tuple[float, int]:
        # A block's first chunk is not there when it begins, which costs a part of a chunk's time.
        return -(-blocks * strips // slots) * (-(-chunks // strips) + 0.3), strips

    return min(map(turns, range(1, chunks + 1)))[1]


def _processors(tensor: Tensor) -> int:
    count: int = torch.cuda.get_device_properties(tensor.device).multi_processor_count
    return count


@functools.cache
def _kernel(source: Path, name: str) -> Kernel:
    return Kernel(source, name)
