"""The gated recurrence on tensor cores: which calls go in chunks, and their launches."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence.call import Call, Launch
from kernelproof.ops.gated_recurrence.chunk_choice import Chunks, choose, whole
from kernelproof.ops.gated_recurrence.chunk_config import (
    CHUNK,
    Wide,
    gate_keys_kernel,
    wide_keys_kernel,
)
from kernelproof.ops.gated_recurrence.config import types

_ELEMENTS = (torch.bfloat16, torch.float16, torch.float32)
# Below so many steps the general kernel is the faster one.
_FEWEST_STEPS = 64
_MAX_INT = 2**31 - 1


@dataclass(frozen=True)
class Plan:
    """What the launches need besides addresses."""

    chunks: Chunks
    first: int  # blocks of the launch for the ends of segments
    blocks: int
    chains: int  # heads of all sequences
    key_dim: int  # as the kernels hold them
    value_dim: int
    numbers: tuple[int, ...]  # T, H, V, K, segments, steps of the first and of others
    group: int
    strides: bytes


def plan(call: Call) -> Plan | None:
    """How kernels in chunks would run this call, None where they cannot, or not well."""
    if call.q.dtype not in _ELEMENTS or call.addresses() % 16:
        return None
    gate = call.gate
    return _plan(
        call.q.device.index,
        call.q.dtype,
        torch.float32 if gate is None else gate.dtype,
        call.log_gates and gate is not None,
        # torch's own word for it: bfloat16 products in less than float where they are faster so.
        not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        call.q.shape,
        call.v.shape,
        call.sequences,
        *call.strides(),
    )


@functools.lru_cache(maxsize=1024)
def _plan(
    device: int,
    element: torch.dtype,
    gate: torch.dtype,
    log_gates: bool,
    precise: bool,
    keys: Sequence[int],
    values: Sequence[int],
    sequences: int,
    *strides: Sequence[int] | None,
) -> Plan | None:
    batch, steps, key_heads, key_dim = keys
    heads, value_dim = values[2:]
    packed = sequences >= 0
    if torch.cuda.get_device_capability(device) < (9, 0):
        return None
    if steps < _FEWEST_STEPS and not packed:  # what a sequence is packed with must not matter
        return None
    gate_k, gate_v, gate_head = strides[3:6]
    gates = sum(1 << i for i, s in enumerate((gate_k, gate_v, gate_head)) if s is not None)
    elements = [(s, 16 // element.itemsize) for s in strides[:3]]
    elements += [(s, 16 // gate.itemsize) for s in (gate_k, gate_v) if s is not None]
    sizes = (batch, steps, heads)
    if not all(_in_units(sizes, s, unit) for s, unit in elements if s is not None):
        return None
    kind = types(element, gate, log_gates)[1]
    chunks = choose(
        kind,
        gate.itemsize,
        gates,
        key_dim,
        value_dim,
        None if packed else steps,
        element,
        precise,
        heads,
    )
    if chunks is None:
        return None
    chains = (sequences if packed else batch) * heads
    rows, columns = whole(key_dim, value_dim)
    tiles = columns // chunks.config.columns
    blocks = chains * tiles * chunks.segments
    if blocks > _MAX_INT or steps > _MAX_INT - 4096:
        return None
    numbers = [*(x for s in strides[:6] for x in ((*s, 0)[:3] if s is not None else (0, 0, 0)))]
    numbers += [x for s in strides[6:] for x in (s if s is not None else (0, 0, 0, 0))]
    return Plan(
        chunks,
        chains * tiles * (chunks.segments - 1),
        blocks,
        chains,
        rows,
        columns,
        (steps, heads, value_dim, key_dim, chunks.segments, chunks.lead, chunks.length),
        heads // key_heads,
        struct.pack(f"<{len(numbers)}q", *numbers),
    )


def _in_units(sizes: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    """Whether every row can be read in aligned units of so many elements."""
    outer = zip(sizes, strides[:3], strict=True)
    return strides[3] == 1 and all(n <= 1 or s % unit == 0 for n, s in outer)


def scratch_bytes(plan: Plan) -> tuple[int, ...]:
    """Bytes of what launches hand on: ends of segments and their decays; of what `gate_keys.cu`
    makes, operands, products and decays, which `wide_keys.cu` makes as one. 0 for what is not."""
    c, segments = plan.chunks.config, plan.chunks.segments
    count = plan.chains * (segments - 1)
    width = plan.key_dim * c.by_key + plan.value_dim * c.by_column
    pieces = plan.chains * -(-plan.numbers[0] // c.steps) if c.prepared else 0
    ends = 4 * count * plan.key_dim * plan.value_dim
    if isinstance(c, Wide):
        return ends, 4 * count * width, pieces * c.record, 0, 0
    return (
        ends,
        4 * count * width,
        pieces * 4 * CHUNK * c.key_dim * c.planes[0],
        pieces * 512 * c.planes[1],
        pieces * 4 * c.key_dim,
    )


def _of_keys(plan: Plan, call: Call, scratch: Sequence[Tensor | None]) -> Launch:
    """The launch that does the work on gates of keys once for all columns."""
    c = plan.chunks.config
    steps, heads, _, rows = plan.numbers[:4]
    pieces = plan.chains * -(-steps // c.steps)
    numbers = (steps, heads, rows, plan.group, plan.strides)
    given = (call.q, call.k, call.gate_k, call.gate_head)
    if isinstance(c, Wide):
        arguments = (*given, scratch[2], *numbers)
        return Launch(wide_keys_kernel(c), arguments, pieces, c.keys_threads, c.keys_shared)
    kernel = gate_keys_kernel(c.element, c.gate, c.gates, c.key_dim, c.precise)
    return Launch(kernel, (*given, *scratch[2:], *numbers), pieces, c.key_dim // 2)


def launches(
    plan: Plan, call: Call, scale: float, y: Tensor, scratch: Sequence[Tensor | None]
) -> list[Launch]:
    """The launches of ``plan`` in order, which write y and, if given, the last state.
    ``scratch``: memory of `scratch_bytes`."""
    q, k, v, gate_k, gate_v, gate_head, initial, last, _, cu_seqlens = call
    made: list[Launch] = []
    c = plan.chunks.config
    if c.prepared:
        made.append(_of_keys(plan, call, scratch))
    arguments = (
        q, k, v, gate_k, gate_v, gate_head, initial, y, last, *scratch, cu_seqlens, *plan.numbers,
        int(cu_seqlens is not None and cu_seqlens.dtype == torch.int64), plan.group, scale,
        plan.strides,
    )  # fmt: skip
    for config, grid in ((plan.chunks.ends, plan.first), (plan.chunks.config, plan.blocks)):
        if config is not None:
            after = bool(made)
            made.append(
                Launch(config.kernel(), arguments, grid, config.threads, config.shared, after)
            )
    return made


def describe(plan: Plan) -> str:
    """What `launch` would run, in words."""
    c, segments = plan.chunks.config, plan.chunks.segments
    name = "wide.cu" if isinstance(c, Wide) else "chunked.cu"
    text = (
        f"{name} on tensor cores, {plan.blocks} blocks of {c.threads} threads, {c.shared:,} "
        f"bytes of shared memory and {c.columns} columns each; time in chunks of {c.steps} steps, "
        "one after the other"
    )
    if segments > 1:
        text += (
            f", in {segments} segments, the first of {plan.chunks.lead} steps and others of up to "
            f"{plan.chunks.length}, whose ends an earlier launch computes"
        )
    if c.tails:
        text += f"; rows and columns beyond {plan.numbers[3]} x {plan.numbers[2]} are zeros"
    if c.prepared:
        text += "; a launch before them works on the gates of keys, once for all columns"
    return text
