"""The template arguments of the kernels in chunks, and the shared memory that they need."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernelproof.cuda import Kernel
from kernelproof.ops.gated_recurrence.config import KEY_GATE, VALUE_GATE, types

_SOURCE = Path(__file__).parent / "chunked.cu"
_SOURCE_WIDE = Path(__file__).parent / "wide.cu"
_SOURCE_WIDE_KEYS = Path(__file__).parent / "wide_keys.cu"
_SOURCE_KEYS = Path(__file__).parent / "gate_keys.cu"
CHUNK = 16  # steps
WIDE = 64  # steps of a chunk of wide.cu
_SHARED_LIMIT = 227 * 1024  # bytes that a block of sm_90 may have
_MOST_SLOTS = 20


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
    def steps(self) -> int:
        """Of a chunk."""
        return CHUNK

    @property
    def groups(self) -> int:
        """Of warps that prepare: each takes chunks of its own."""
        parts = self.key_dim // 64 if self.by_key and not self.prepared else 1
        return self.preparers // parts

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
        groups, teams = self.groups, self.states // self.halves
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


@dataclass(frozen=True)
class Wide(Config):
    """The same of ``wide.cu``: a gate for all of the state, or gates of keys that ``wide_keys.cu``
    has worked on."""

    @property
    def terms(self) -> int:
        """Planes of operands."""
        if self.element == torch.float32:
            return 3
        return 2 if self.element == torch.float16 or self.precise else 1

    @property
    def steps(self) -> int:
        return WIDE // 2 if self.terms > 1 else WIDE

    @property
    def tile(self) -> int:
        """Bytes of a chunk of q, or of k."""
        return 2 * self.steps * self.key_dim * self.terms

    @property
    def products(self) -> int:
        return 128 * self.steps * (self.terms if self.steps == WIDE else (self.terms + 1) // 2)

    @property
    def record(self) -> int:
        """Bytes that `wide_keys.cu` makes of a chunk."""
        return 2 * self.tile + self.products + 4 * self.key_dim + 128

    @property
    def slot(self) -> int:
        size = self.tile + self.element.itemsize * self.steps * self.columns
        return size + (0 if self.ends else self.tile + self.products)

    @property
    def notes(self) -> int:
        """Bytes beside a slot."""
        return (4 * self.key_dim if self.by_key else 512) + 64

    def _fixed(self) -> int:
        return 16 + (self.states // self.halves * 16 if self.halves > 1 else 0)

    @property
    def shared(self) -> int:
        return self._fixed() + self.slots * (self.slot + self.notes + 16)

    def fitted(self, limit: int = _SHARED_LIMIT) -> Config:
        slots = (limit - self._fixed()) // (self.slot + self.notes + 16)
        return replace(self, slots=min(slots, _MOST_SLOTS))

    def kernel(self) -> Kernel:
        return _wide_kernel(self)

    @property
    def groups(self) -> int:
        if not self.by_key:
            return self.preparers // 4
        return 4 if self.slots >= 4 else min(self.slots, 2)

    @property
    def keys_threads(self) -> int:
        return self.steps // 16 * self.key_dim // 2

    @property
    def keys_shared(self) -> int:
        """Bytes of shared memory of a block of `wide_keys.cu`."""
        warps, pieces = self.keys_threads // 32, self.steps // 16
        own = 2 * CHUNK * 144 if self.element == torch.bfloat16 else 64 * 128
        return pieces // 2 * self.tile + pieces * self.key_dim * 4 + warps * (896 + own)


@functools.cache
def _wide_kernel(c: Wide) -> Kernel:
    element = types(c.element, torch.float32, False)[0]
    ends, *forms = ("true" if x else "false" for x in (c.ends, c.precise, c.tails))
    numbers = (c.gates, c.key_dim, c.states, c.halves, c.preparers, c.slots, c.ahead)
    arguments = [element, c.gate, *map(str, numbers), ends, *forms, str(c.shared)]
    return Kernel(_SOURCE_WIDE, f"wide<Wide<{', '.join(arguments)}>>")


@functools.cache
def wide_keys_kernel(c: Wide) -> Kernel:
    """The kernel that does the work on gates of keys for all columns of a head at once."""
    name = types(c.element, torch.float32, False)[0]
    precise = str(c.precise).lower()
    return Kernel(
        _SOURCE_WIDE_KEYS, f"wide_keys<{name}, {c.gate}, {c.gates}, {c.key_dim}, {precise}>"
    )


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
