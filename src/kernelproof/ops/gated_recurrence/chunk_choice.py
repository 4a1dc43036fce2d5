"""Which kernels of ``chunked.cu`` a problem gets, and how its steps are divided."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from kernelproof.cuda import Kernel
from kernelproof.ops.gated_recurrence.config import KEY_GATE, VALUE_GATE, types

_SOURCE = Path(__file__).parent / "chunked.cu"
_SOURCE_KEYS = Path(__file__).parent / "gate_keys.cu"
CHUNK = 16  # steps
_SHARED_LIMIT = 227 * 1024  # bytes that a block of sm_90 may have
_MOST_SLOTS = 20
# Up to so many rows or columns, which do not fill half of what the kernels hold, the general kernel
# is the faster one.
_FEW_ROWS = 32
# Steps of the first of two segments over those of the other, whose end and y take as long together
# where both fit the GPU at once. More segments do not, and are best alike (measured on an H200).
_LEAD = 1.7


@dataclass(frozen=True)
class Config:
    """The template arguments of ``chunked.cu``, whose `Config` says what they mean."""

    element: torch.dtype
    gate: str
    gate_bytes: int
    gates: int
    key_dim: int
    tiles: int
    states: int
    preparers: int
    ahead: int
    ends: bool = False
    halves: int = 1
    prepared: bool = False
    precise: bool = False
    tails: bool = False
    slots: int = 0  # 0: as many as fit

    @property
    def columns(self) -> int:
        """Columns of the state per block."""
        return self.states // self.halves * 16 * self.tiles

    @property
    def threads(self) -> int:
        return 32 * (self.states + self.preparers)

    @property
    def by_key(self) -> bool:
        return bool(self.gates & KEY_GATE)

    @property
    def by_column(self) -> bool:
        return bool(self.gates & VALUE_GATE) or not self.by_key

    @property
    def planes(self) -> tuple[int, int]:
        """So many bfloat16 numbers make an element of q and k with their gates, and of A."""
        if self.element == torch.float32:
            return 3, 3
        if self.element == torch.float16:
            return 2, 2
        scalar = not self.by_key and not self.gates & VALUE_GATE
        return (2 if self.precise and self.by_key else 1), (2 if self.precise or scalar else 1)

    @property
    def slot(self) -> int:
        """Bytes of a slot."""
        size = 2 * CHUNK * self.key_dim * (1 if self.ends else 2) * self.planes[0]
        size += self.element.itemsize * CHUNK * self.columns
        if self.gates & VALUE_GATE:
            size += CHUNK * self.columns * self.gate_bytes
        size += 0 if self.ends else 512 * self.planes[1]
        size += 4 * self.key_dim if self.by_key else 0
        size += 192 if self.ends or not self.by_key else 0
        return -(-size // 1024) * 1024

    @property
    def shared(self) -> int:
        """Bytes of shared memory per block."""
        return self._fixed() + self.slots * (self.slot + 16)

    def _fixed(self) -> int:
        levelled = self.by_key and not self.prepared
        parts = self.key_dim // 64 if levelled else 1
        groups, teams = self.preparers // parts, self.states // self.halves
        size = 16 + (teams * 32 if self.halves > 1 else 0)
        if not self.ends and self.element.itemsize == 2:
            size += teams * 2 * CHUNK * 32 * self.tiles
            size += teams * 2 * self.tiles * 1024 if self.halves > 1 else 0
        if levelled:
            size += self.preparers * (self.ahead + 1) * CHUNK * 64 * self.gate_bytes
            if not self.ends:
                own = 2 * CHUNK * 144 if self.element == torch.bfloat16 else 64 * 128
                size += self.preparers * own + groups * 2 * (parts - 1) * 896
        if self.by_key and self.ends:
            size += groups * 8 * self.key_dim
        return size

    def fitted(self, limit: int = _SHARED_LIMIT) -> Config:
        """With as many slots as fit the shared memory."""
        slots = (limit - self._fixed()) // (self.slot + 16)
        return replace(self, slots=min(slots, _MOST_SLOTS))

    def kernel(self) -> Kernel:
        return _kernel(self)


@functools.cache
def _kernel(c: Config) -> Kernel:
    numbers = (c.gates, c.key_dim, c.tiles, c.states, c.slots, c.preparers, c.ahead)
    ends, *forms = ("true" if x else "false" for x in (c.ends, c.prepared, c.precise, c.tails))
    element = types(c.element, torch.float32, False)[0]
    arguments = [element, c.gate, *map(str, numbers), ends, str(c.halves), *forms, str(c.shared)]
    return Kernel(_SOURCE, f"chunked<Config<{', '.join(arguments)}>>")


@functools.cache
def gate_keys_kernel(
    element: torch.dtype, gate: str, gates: int, key_dim: int, precise: bool
) -> Kernel:
    """The kernel that does the work on gates of keys for all columns of a head at once."""
    name = types(element, torch.float32, False)[0]
    return Kernel(
        _SOURCE_KEYS, f"gate_keys<{name}, {gate}, {gates}, {key_dim}, {str(precise).lower()}>"
    )


class Chunks(NamedTuple):
    """How a call goes: the kernel that gives y, the one before it where a sequence has more than
    one segment, and the segments."""

    config: Config
    ends: Config | None
    segments: int
    lead: int  # steps of the first segment, which waits for none
    length: int  # steps of each other one


def choose(
    gate: str,
    gate_bytes: int,
    gates: int,
    key_dim: int,
    value_dim: int,
    steps: int | None,
    element: torch.dtype = torch.bfloat16,
    precise: bool = False,
    heads: int = 1,
) -> Chunks | None:
    """The kernels for a problem, None where ``chunked.cu`` has none. ``steps`` is None where the
    host does not know the lengths of sequences. ``precise``: bfloat16 operands in two parts.

    Segments round differently from a sequence that is gone through at once, so that they depend
    on the sizes of one sequence alone, as everything that decides the rounding does.
    """
    unit = 16 // element.itemsize
    few = key_dim <= _FEW_ROWS or value_dim <= _FEW_ROWS
    if few or key_dim > 256 or key_dim % unit or value_dim % unit:
        return None
    tails = value_dim % 64 != 0 or key_dim not in (64, 128, 256)
    key_dim, value_dim = whole(key_dim, value_dim)
    if gates & KEY_GATE and key_dim == 256 and (gates & VALUE_GATE or steps is None):
        return None
    base = Config(element, gate, gate_bytes, gates, key_dim, 1, 4, 4, 2, precise=precise)
    base = replace(base, tails=tails)
    base = _half(base, value_dim) if element == torch.bfloat16 else _finer(base, value_dim)
    config = base.fitted()
    if steps is None:
        return Chunks(config, None, 1, 0, 0)
    blocks = heads * (value_dim // config.columns)
    segments, lead, length = divided(steps, _segment(steps, config, blocks))
    ends = None
    if segments > 1:
        ends = replace(base, ends=True)
        if base.tiles == 2:  # what is shared out by columns otherwise is here by rows as well
            ends = replace(ends, states=8, halves=2, preparers=8)
        ends = ends.fitted()
    return Chunks(config, ends, segments, lead, length)


def _half(base: Config, value_dim: int) -> Config:
    """Of bfloat16: what was best on an H200."""
    if base.by_key and base.key_dim == 256:
        preparers = 2 if base.precise else 4  # slots are larger then
        return replace(base, states=8, ahead=1, halves=2, prepared=True, preparers=preparers)
    if base.by_key:
        if base.gates & VALUE_GATE:
            return replace(base, ahead=1)
        if base.key_dim == 128:
            return replace(base, tiles=2, ahead=1) if value_dim % 128 == 0 else base
        return base if base.precise else replace(base, preparers=8, ahead=1)
    if base.key_dim == 128:
        return replace(base, states=8 if value_dim % 128 == 0 else 4, ahead=1)
    return replace(base, ahead=1 if base.key_dim == 256 else 3)


def _finer(base: Config, value_dim: int) -> Config:
    """Of float16 and float32, whose operands have several planes: more shared memory and registers.
    Where slots are few, warps that prepare have one each and copy nothing ahead."""
    base = replace(base, ahead=1, precise=False, prepared=base.by_key and base.key_dim == 256)
    if base.element == torch.float16:
        return replace(base, preparers=2) if base.key_dim == 256 else base
    if base.key_dim == 256:
        return replace(base, preparers=2) if base.by_key else replace(base, preparers=3, ahead=0)
    if base.key_dim == 64:
        return replace(base, ahead=0)
    base = replace(base, states=8 if value_dim % 128 == 0 else 4)
    if not base.gates & VALUE_GATE:
        return base
    return replace(base, preparers=2) if base.by_key else replace(base, ahead=0)


def whole(key_dim: int, value_dim: int) -> tuple[int, int]:
    """Rows and columns of a state as the kernels hold it."""
    return next(rows for rows in (64, 128, 256) if key_dim <= rows), -(-value_dim // 64) * 64


def _segment(steps: int, config: Config, blocks: int) -> int:
    """About how many steps a segment has where a sequence has so many blocks for its heads and
    their columns: a compromise between one sequence, which more segments would spread over more of
    the GPU, and so many that they fill it, for which they cost up to twice the time."""
    narrow, scalar = config.key_dim == 64, not config.gates & (KEY_GATE | VALUE_GATE)
    if steps > 8192:
        return 2048
    if steps > 2048:
        return max(512, steps // 8) if narrow and not scalar else 1024
    if steps > 768 and scalar:
        return steps if narrow else 1024
    if steps < 512 or (steps > 1024 and narrow):
        return steps
    # As many as half of the GPU takes at once, of no fewer steps than a launch is worth.
    return max(128 if steps <= 1024 else 256, -(-steps * blocks // 64))


def divided(steps: int, length: int) -> tuple[int, int, int]:
    """How many segments there are, about ``length`` steps long, and the steps of the first and of
    each other. The first one's blocks start while the others' ends are still being computed."""
    segments = max(1, -(-steps // length))
    if segments == 1:
        return 1, steps, steps
    other = steps / (segments - 1 + (_LEAD if segments == 2 else 1.0))
    chunks = int(other / CHUNK)
    if segments <= 16 and other / CHUNK - chunks >= 0.5:  # else the first is the longest by far
        chunks += 1
    other = max(1, chunks) * CHUNK
    lead = -(-(steps - other * (segments - 1)) // CHUNK) * CHUNK
    return segments, lead, other
