"""The gated recurrence on an NVIDIA GPU: configuration and launch of ``kernel.cu``."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.cuda import Kernel
from kernelproof.errors import UnsupportedError

_SOURCE = Path(__file__).parent / "kernel.cu"
_ELEMENTS = {torch.float32: "float", torch.float16: "half16", torch.bfloat16: "bfloat"}
_NO_STRIDES = (0, 0, 0, 0)
_SHARED_LIMIT = 113 * 1024  # bytes; two such blocks fit a processor of sm_90
_MAX_ROWS = 1024  # of the state in one launch
_MAX_INT = 2**31 - 1

KEY_GATE, VALUE_GATE, HEAD_GATE = 1, 2, 4


@dataclass(frozen=True)
class Config:
    """The template arguments of ``kernel.cu``, whose header says what they mean."""

    element: torch.dtype
    gate: torch.dtype
    key_dim: int
    lanes: int
    rows: int
    cols: int
    segments: int
    groups: int
    steps: int
    buffers: int
    gates: int
    wide: bool

    @property
    def tile(self) -> int:
        """Columns of the state per block."""
        return self.groups * (32 // self.lanes) * self.cols

    @property
    def threads(self) -> int:
        return 32 * self.segments * self.groups

    @property
    def shared(self) -> int:
        """Bytes of shared memory per block."""
        span = self.segments * self.steps
        row = -(-self.key_dim // 4) * 4
        state = self.rows * self.cols
        by_row, by_column = bool(self.gates & KEY_GATE), bool(self.gates & ~KEY_GATE)
        stage = span * row * (2 + by_row)
        stage += span * self.tile * (2 if self.gates & VALUE_GATE else 1)
        stage += -(-span // 4) * 4 if self.gates & HEAD_GATE else 0
        decay = by_row * self.rows + by_column * self.cols
        ends = 32 * (self.segments - 1) * self.groups * (state + decay)
        carry = 32 * self.groups * state
        partial = self.lanes + 4 if self.lanes >= 8 else self.lanes
        partials = span * self.tile * partial
        return 4 * (self.buffers * (stage + ends) + 2 * carry + partials)

    def kernel(self, strided: bool) -> Kernel:
        """The instance for tensors of any strides, or the one for contiguous tensors."""
        return _kernel(self, strided)


@functools.cache
def _kernel(config: Config, strided: bool) -> Kernel:
    c = config
    numbers = (
        c.key_dim, c.lanes, c.rows, c.cols, c.segments, c.groups, c.steps, c.buffers, c.gates,
    )  # fmt: skip
    arguments = [_ELEMENTS[c.element], _ELEMENTS[c.gate], *map(str, numbers)]
    arguments += ["true" if c.wide else "false", str(c.shared)]
    entry = "strided" if strided else "contiguous"
    return Kernel(_SOURCE, f"{entry}<Config<{', '.join(arguments)}>>")


def choose(
    element: torch.dtype,
    gate: torch.dtype,
    key_dim: int,
    value_dim: int,
    steps: int,
    heads: int,
    gates: int,
    wide: bool,
    processors: int,
    shared_limit: int = _SHARED_LIMIT,
) -> Config:
    """The configuration for a problem; ``heads`` counts those of all batches.

    How time is split decides the rounding, so it depends on the sizes of one head alone: the
    result of a sequence does not change with the batch that it is in. Only ``groups`` (columns of
    a block) looks at ``heads``. ``shared_limit`` is in bytes per block.
    """
    lanes, rows, cols, groups = _warp(key_dim)
    split = _split(steps)
    # The inputs v and gate of a segment stay in registers: at most 16 steps x columns of each.
    length = min(split[1], 16 // cols)
    warps = 8 if rows * cols >= 32 else 16  # more would leave a thread too few registers
    config = Config(
        element, gate, key_dim, lanes, rows, cols, min(split[0], warps // groups), groups, length,
        buffers=1, gates=gates, wide=wide,
    )  # fmt: skip
    config = _fit(config, steps, shared_limit)
    # With blocks in plenty, let them share the rows of q and k among more columns.
    wider = replace(config, groups=2 * groups)
    blocks = -(-value_dim // config.tile) * heads
    if (
        blocks >= 4 * processors
        and value_dim > config.tile
        and wider.segments * wider.groups <= warps
        and wider.shared <= shared_limit
    ):
        return wider
    return config


def _warp(key_dim: int) -> tuple[int, int, int, int]:
    """(lanes, rows, cols, groups): how a warp holds the rows, with a tile of 4 columns or more."""
    if key_dim <= 32:
        lanes = next(n for n in (1, 2, 4, 8) if 4 * n >= key_dim)
        return lanes, 4, 1, 1
    for limit, shape in ((64, (8, 8, 2, 1)), (128, (16, 8, 2, 1)), (256, (32, 8, 4, 1))):
        if key_dim <= limit:
            return shape
    return (32, 16, 2, 2) if key_dim <= 512 else (32, 32, 1, 4)


def _split(steps: int) -> tuple[int, int]:
    """(segments, steps of a segment) for a sequence; 8 x 16 was the best split of 128."""
    for limit, split in ((1, (1, 1)), (8, (1, 8)), (32, (4, 8)), (64, (8, 8))):
        if steps <= limit:
            return split
    return 8, 16


def _fit(config: Config, steps: int, shared_limit: int) -> Config:
    """``config`` with its span shortened until it fits the shared memory."""
    while True:
        span = config.segments * config.steps
        config = replace(config, buffers=1 if steps <= span else 2)
        if config.shared <= shared_limit:
            return config
        if config.steps > 4 or config.segments == 1:
            config = replace(config, steps=config.steps // 2)
        else:
            config = replace(config, segments=config.segments // 2)


@dataclass(frozen=True)
class _Plan:
    """What a launch needs besides addresses."""

    kernel: Kernel
    grid: int
    block: int
    shared: int
    numbers: tuple[int, ...]  # T, H, V
    strides: tuple[int, ...]


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    with_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``y (B, T, H, V)`` in v's dtype and, if asked for, the last state ``(B, H, K, V)`` float32.

    The arguments are those of :func:`kernelproof.ops.gated_recurrence.gated_recurrence`, which
    checks them; here they are taken to be valid. Any strides; nothing is copied, except that
    K > 1024 in half precision goes through float32 copies.

    Raises:
        UnsupportedError: T, V or the number of blocks does not fit 32 bits.
    """
    batch, _, heads, key_dim = q.shape
    y = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    state = None
    if with_state:
        shape = (batch, heads, key_dim, v.shape[-1])
        state = torch.empty(shape, dtype=torch.float32, device=v.device)
    if key_dim == 0:
        return y.zero_(), state
    if y.numel() == 0 and (state is None or state.numel() == 0):
        return y, state
    if key_dim > _MAX_ROWS:
        _launch_row_blocks(q, k, v, gate_k, gate_v, gate_head, scale, initial_state, y, state)
    else:
        _launch(q, k, v, gate_k, gate_v, gate_head, scale, initial_state, y, state)
    return y, state


class ModelNew(nn.Module):
    """The CUDA kernel as a candidate for ``problem.Model``."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        return launch(q, k, v, gate_v=gate)[0]


def _launch_row_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    initial: Tensor | None,
    y: Tensor,
    state: Tensor | None,
) -> None:
    """Rows of the state never meet but in the sum that is y: launch blocks of rows and add."""
    if v.dtype != torch.float32:  # partial sums must not be rounded to half precision
        q, k, v = q.float(), k.float(), v.float()
        gate_k, gate_v, gate_head = (
            None if gate is None else gate.float() for gate in (gate_k, gate_v, gate_head)
        )
    total = torch.zeros_like(y, dtype=torch.float32)
    part = torch.empty_like(total)
    for first in range(0, q.shape[-1], _MAX_ROWS):
        rows = slice(first, first + _MAX_ROWS)
        _launch(
            q[..., rows], k[..., rows], v,
            None if gate_k is None else gate_k[..., rows], gate_v, gate_head, scale,
            None if initial is None else initial[:, :, rows], part,
            None if state is None else state[:, :, rows],
        )  # fmt: skip
        total += part
    y.copy_(total)


def _launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    initial: Tensor | None,
    y: Tensor,
    state: Tensor | None,
) -> None:
    gate = gate_v if gate_v is not None else gate_k if gate_k is not None else gate_head
    addresses = q.data_ptr() | k.data_ptr() | v.data_ptr()
    if gate_k is not None:
        addresses |= gate_k.data_ptr()
    if gate_v is not None:
        addresses |= gate_v.data_ptr()
    plan = _plan(
        q.device.index,
        addresses % 16 == 0,
        q.dtype,
        torch.float32 if gate is None else gate.dtype,
        q.shape,
        v.shape[-1],
        q.stride(),
        k.stride(),
        v.stride(),
        None if gate_k is None else gate_k.stride(),
        None if gate_v is None else gate_v.stride(),
        None if gate_head is None else gate_head.stride(),
        None if initial is None else initial.stride(),
        None if state is None else state.stride(),
    )
    plan.kernel(
        q, k, v, gate_k, gate_v, gate_head, initial, y, state, *plan.numbers, float(scale),
        *plan.strides, grid=plan.grid, block=plan.block, shared=plan.shared,
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def _plan(
    device: int,
    aligned: bool,
    element: torch.dtype,
    gate: torch.dtype,
    shape: Sequence[int],
    value_dim: int,
    *strides: Sequence[int] | None,
) -> _Plan:
    """``strides`` are those of q, k, v, gate_k, gate_v, gate_head, the initial and last state."""
    batch, steps, heads, key_dim = shape
    gate_k, gate_v, gate_head = strides[3:6]
    gates = KEY_GATE if gate_k is not None else 0
    gates |= VALUE_GATE if gate_v is not None else 0
    gates |= HEAD_GATE if gate_head is not None else 0
    sizes = (batch, steps, heads)
    rows = [(s, key_dim) for s in (strides[0], strides[1], gate_k) if s is not None]
    rows += [(s, value_dim) for s in (strides[2], gate_v) if s is not None]
    wide = aligned and all(_in_quads(sizes, s, width) for s, width in rows)
    gpu: Any = torch.cuda.get_device_properties(device)
    limit = min(gpu.shared_memory_per_block_optin, _SHARED_LIMIT)
    config = choose(
        element, gate, key_dim, value_dim, steps, batch * heads, gates, wide,
        gpu.multi_processor_count, limit,
    )  # fmt: skip
    blocks = -(-value_dim // config.tile) * batch * heads
    for name, number in (("T", steps + 256), ("V", value_dim + 256), ("blocks", blocks)):
        if number > _MAX_INT:
            raise UnsupportedError(
                f"gated_recurrence: {name} = {number} does not fit 32 bits; split the batch, "
                'the sequence (with initial_state) or the columns, or use impl="reference"'
            )
    states = (batch, heads, key_dim, value_dim)
    keys, values = (*sizes, key_dim), (*sizes, value_dim)
    shapes = (keys, keys, values, keys, values, sizes, states, states)
    strided = not all(s is None or _contiguous(z, s) for z, s in zip(shapes, strides, strict=True))
    numbers: list[int] = []
    if strided:
        for one in strides:
            numbers += [*one, 0][:4] if one is not None else _NO_STRIDES
    return _Plan(
        config.kernel(strided),
        blocks,
        config.threads,
        config.shared,
        (steps, heads, value_dim),
        tuple(numbers),
    )


def _in_quads(sizes: Sequence[int], strides: Sequence[int], width: int) -> bool:
    """Whether every row of ``width`` elements can be read four aligned elements at a time."""
    outer = zip(sizes, strides[:3], strict=True)
    return width % 4 == 0 and strides[3] == 1 and all(n <= 1 or s % 4 == 0 for n, s in outer)


def _contiguous(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
