"""The bytes of one state space and, per unit of them, a record of the last accesses.

The unit is the narrowest access that the kernel makes to this space, so that neighbours that are
written by different threads never look like one place. A record is one int64: the time of the
access, the instruction and the thread. Zero means none.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelproof.emulate.memory.layout import Layout

Array = Any  # of numpy

THREAD_BITS, OPERATION_BITS = 24, 16
THREADS = (1 << THREAD_BITS) - 1
TIME_SHIFT = THREAD_BITS + OPERATION_BITS
MAX_TIME = (1 << (63 - TIME_SHIFT)) - 1
IN_FLIGHT = MAX_TIME  # the time of a cp.async that nobody has waited for

OUTSIDE, UNSET, SET = 0, 1, 2  # states of a unit


def record(time: int, operation: int, threads: Array) -> Array:
    """Records of threads (int64)."""
    return threads | np.int64((time << TIME_SHIFT) | (operation << THREAD_BITS))


def time_of(records: Array) -> Array:
    return records >> TIME_SHIFT


def operation_of(records: Array) -> Array:
    return (records >> THREAD_BITS) & ((1 << OPERATION_BITS) - 1)


def thread_of(records: Array) -> Array:
    return records & THREADS


class Space:
    """``copies`` equal layouts behind each other (one per block or thread) of ``size`` bytes.

    ``fill`` is what bytes without a value read as: 0xFF makes NaN of floats and -1 of integers.
    """

    def __init__(
        self, name: str, layout: Layout, size: int, copies: int, unit: int, races: bool,
        fill: int = 0xFF,
    ) -> None:  # fmt: skip
        self.name = name
        self.layout = layout
        self.size = size
        self.unit = unit
        self.shift = unit.bit_length() - 1
        self.races = races
        total = max(size * copies, 16)
        self.data = np.full(total, fill, np.uint8) if fill else np.zeros(total, np.uint8)
        units = total // unit
        self.state = np.zeros(units, np.uint8)
        self.views: dict[str, Array] = {}
        if races:
            # Zeroed memory is not touched by the system before it is used.
            self.writes = np.zeros(units, np.int64)
            self.high = np.zeros(units, np.int64)
            self.low = np.zeros(units, np.int64)
            self.other = np.zeros(units, np.int64)
        for region in layout.regions:
            for copy in range(copies):
                # A unit that a region covers in part counts as its own.
                first = (copy * size + region.start) >> self.shift
                last = -(-(copy * size + region.stop) // unit)
                self.state[first:last] = SET if region.complete else UNSET

    def view(self, dtype: str) -> Array:
        """The bytes as an array of ``dtype``."""
        found = self.views.get(dtype)
        if found is None:
            usable = len(self.data) // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
            found = self.views[dtype] = self.data[:usable].view(dtype)
        return found

    def units(self, index: Array, width: int) -> Array:
        """Numbers of the units that ``width`` bytes at each index cover: shape (n, units)."""
        first = index >> self.shift
        count = max(1, width // self.unit)
        return first[:, None] if count == 1 else first[:, None] + np.arange(count)

    def note_reads(self, units: Array, records: Array) -> None:
        """Keep the highest and the lowest reader of this instruction, and one of another warp."""
        flat = units.reshape(-1)
        records = np.broadcast_to(records[:, None], units.shape).reshape(-1)
        before = self.high[flat]
        foreign = (before != 0) & ((thread_of(before) ^ thread_of(records)) >> 5 != 0)
        if foreign.any():
            self.other[flat[foreign]] = before[foreign]
        self.high[flat] = records
        self.low[flat[::-1]] = records[::-1]
