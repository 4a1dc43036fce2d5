"""How ``kernel.cu`` is instantiated: its template arguments, and their choice for a problem."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernelproof.cuda import Kernel

_SOURCE = Path(__file__).parent / "kernel.cu"
_ELEMENTS = {torch.float32: "float", torch.float16: "half16", torch.bfloat16: "bfloat"}
SHARED_LIMIT = 113 * 1024  # bytes; two such blocks fit a processor of sm_90

# Longer sequences all have one split of time, so that one that is cut at the end of a span and goes
# on from the carried state gives the same bits.
_MANY_STEPS = 64

KEY_GATE, VALUE_GATE, HEAD_GATE = 1, 2, 4


def gate_bits(*gates: object) -> int:
    """Which of gate_k, gate_v, gate_head are given, as a sum of the constants above."""
    return sum(1 << i for i, gate in enumerate(gates) if gate is not None)


def types(element: torch.dtype, gate: torch.dtype, log_gates: bool) -> list[str]:
    """The types of elements and gates in the CUDA sources."""
    kind = _ELEMENTS[gate]
    return [_ELEMENTS[element], f"logarithm<{kind}>" if log_gates else kind]


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
    log_gates: bool = False

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

    def kernel(self, entry: str) -> Kernel:
        """The instance for "contiguous" tensors, for "strided" ones, or for "packed" sequences
        (of any strides)."""
        return _kernel(self, entry)


@functools.cache
def _kernel(config: Config, entry: str) -> Kernel:
    c = config
    numbers = (
        c.key_dim, c.lanes, c.rows, c.cols, c.segments, c.groups, c.steps, c.buffers, c.gates,
    )  # fmt: skip
    arguments = [*types(c.element, c.gate, c.log_gates), *map(str, numbers)]
    arguments += ["true" if c.wide else "false", str(c.shared)]
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
    shared_limit: int = SHARED_LIMIT,
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
    for limit, split in ((1, (1, 1)), (8, (1, 8)), (32, (4, 8)), (_MANY_STEPS, (8, 8))):
        if steps <= limit:
            return split
    return 8, 16


def _fit(config: Config, steps: int, shared_limit: int) -> Config:
    """``config`` with its span shortened until it fits the shared memory (for many steps as if
    there were more than one span)."""
    shortest = steps <= _MANY_STEPS
    while True:
        span = config.segments * config.steps
        config = replace(config, buffers=1 if shortest and steps <= span else 2)
        if config.shared <= shared_limit:
            return replace(config, buffers=1 if steps <= span else 2)
        if config.steps > 4 or config.segments == 1:
            config = replace(config, steps=config.steps // 2)
        else:
            config = replace(config, segments=config.segments // 2)
