"""The checks that every access passes: alignment, bounds, initialisation, races."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelproof.emulate.active import Active
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import Region
from kernelproof.emulate.memory.order import Order
from kernelproof.emulate.memory.space import Space
from kernelproof.emulate.report import Report

Array = Any


class Restart(Exception):
    """The launch must start again with more recorded: ``track`` names a buffer whose reads matter,
    ``together`` asks for all blocks at once, ``split`` for warp operations that wait."""

    def __init__(self, track: str = "", together: bool = False, split: bool = False) -> None:
        super().__init__(track)
        self.track, self.together, self.split = track, together, split


class Checks:
    """Shared by all memory operations of a machine; knows the launch's shape for messages."""

    order: Order
    report: Report
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    per_block: int  # threads of a block, warps filled up
    first: int  # thread of the launch that is thread 0 of the batch
    strong: Array  # per instruction: its accesses are strong
    volatile: Array
    collective: Array  # per instruction: done by a warpgroup together
    cluster_size: int
    waiting: bool  # some threads wait at a barrier
    last_effect: Array  # per thread of the batch: the last instruction with an effect

    # ---- words

    def who(self, thread: int) -> str:
        """A thread of the launch, as CUDA counts them."""
        if thread >= self.order.threads:
            into = int(self.order.block_of(np.int64(thread)))
            return f"a copy into {self.who(into * self.per_block).split(' thread')[0]}"
        number, t = divmod(int(thread), self.per_block)
        gx, gy, _ = self.grid
        bx, by, _ = self.block
        block = (number % gx, number // gx % gy, number // (gx * gy))
        inner = (t % bx, t // bx % by, t // (bx * by))
        names = [b if any(b[1:]) or any(n > 1 for n in size[1:]) else b[:1]
                 for b, size in ((block, self.grid), (inner, self.block))]  # fmt: skip
        words = [", ".join(map(str, n)) for n in names]
        words = [f"({w})" if "," in w else w for w in words]
        return f"block {words[0]} thread {words[1]}"

    def _name(self, space: Space, offset: int) -> str:
        region = space.layout.at(offset)
        if region is None:
            return f"{space.name} memory"
        at = offset - region.start
        return f"{region.name} at byte {at}" if at else f"the start of {region.name}"

    # ---- where

    def usable(self, m: Access, space: Space, address: Array, active: Active) -> Array | None:
        """Positions whose access is aligned and inside an array; None when all are. The others
        are reported."""
        width = m.width
        good = None
        if width > 1:
            odd = (address & (width - 1)) != 0
            if odd.any():
                n = int(np.argmax(odd))
                where = self._name(space, int(address[n]))
                self.report.add(
                    "misaligned", m.operation,
                    f"{_verb(m)} of {width} bytes at {where}, which is no multiple of {width}; "
                    f"{self.who(self.first + active.threads[n])}",
                    count=int(odd.sum()),
                )  # fmt: skip
                good = ~odd
        low, high = int(address.min()), int(address.max())
        if space.name == "global":
            region = space.layout.at(low)
            if region is not None and high + width <= region.stop:
                return None if good is None else np.nonzero(good)[0]
            inside = _state(space, address, width)
        elif low >= 0 and high + width <= space.size and space.layout.regions:
            return None if good is None else np.nonzero(good)[0]
        else:
            inside = (address >= 0) & (address + width <= space.size)
        if not inside.all():
            self.outside(m, space, address, active, ~inside)
            good = inside if good is None else good & inside
        return None if good is None else np.nonzero(good)[0]

    def outside(self, m: Access, space: Space, address: Array, active: Active, bad: Array) -> None:
        n = int(np.argmax(bad))
        at = int(address[n])
        self.report.add(
            "out of bounds", m.operation,
            f"{_verb(m)} of {m.width} bytes, {space.layout.describe(at, m.width)}; "
            f"{self.who(self.first + active.threads[n])}",
            subject=space.name, count=int(bad.sum()),
        )  # fmt: skip

    def regions(self, space: Space, address: Array) -> list[tuple[Region, Array | None]]:
        """The arrays of global memory that are touched, each with the positions that do."""
        low = space.layout.at(int(address.min()))
        if low is not None and int(address.max()) < low.stop:
            return [(low, None)]
        starts = np.array([r.start for r in space.layout.regions])
        which = np.searchsorted(starts, address, side="right") - 1
        return [
            (space.layout.regions[n], np.nonzero(which == n)[0]) for n in np.unique(which).tolist()
        ]

    # ---- initialisation

    def initialised(
        self, m: Access, space: Space, units: Array, address: Array, active: Active
    ) -> None:
        """Reports accesses outside of arrays, and reads of units without a value."""
        state = space.state[units]
        low = int(state.min())
        if low == shadow.SET:
            return
        if low == shadow.OUTSIDE:
            outside = (state == shadow.OUTSIDE).any(axis=1)
            self.outside(m, space, address, active, outside)
        if m.kind in ("load", "atomic"):
            empty = state == shadow.UNSET
            if m.unused:
                each = max(1, np.dtype(m.dtype).itemsize // space.unit)
                empty[:, [n * each + i for n in m.unused for i in range(each)]] = False
            unset = empty.any(axis=1)
            if unset.any():
                n = int(np.argmax(unset))
                self.report.add(
                    "uninitialised local" if space.name == "local" else "uninitialised",
                    m.operation,
                    f"reads {self._name(space, int(address[n]))}, which nobody has written; "
                    f"{self.who(self.first + active.threads[n])}",
                    subject=self._subject(space, int(address[n])), count=int(unset.sum()),
                )  # fmt: skip

    def _subject(self, space: Space, offset: int) -> str:
        region = space.layout.at(offset)
        return region.name if region else space.name

    # ---- races

    def conflicts(
        self, m: Access, space: Space, units: Array, address: Array, active: Active,
        records: Array, earlier: str, same: Any = None,
    ) -> None:  # fmt: skip
        """Compare with one record per unit. ``earlier``: what it was, "write" or "read";
        ``same()``: which threads store the value that is there already."""
        if not records.any():
            return
        now = active.threads[:, None]
        times = shadow.time_of(records)
        before = shadow.thread_of(records)
        suspect = (records != 0) & (before != self.first + now)
        if space.name == "shared" and self.cluster_size == 1:
            suspect &= (times >= self.order.block[now]) | (before >= self.order.threads)
        if earlier == "read" or m.kind != "copy":
            self._in_flight(m, space, times, before, now, active, address, records, earlier)
        if not suspect.any():
            return
        rows, columns = np.nonzero(suspect)
        threads = active.threads[rows]
        before, times = before[rows, columns], times[rows, columns]
        operations = shadow.operation_of(records[rows, columns])
        racing = ~self.order.ordered(before, times, threads)
        if self.collective[operations].any():
            self._collective(racing, before, times, threads, operations)
        both = self.strong[operations] & self.strong[m.operation]
        if space.name == "shared" and both.any():
            # Volatile alone does not order the threads of a warp.
            legacy = self.volatile[operations] & self.volatile[m.operation]
            both &= ~(legacy & (before >> 5 == (self.first + threads) >> 5))
        racing &= ~both
        if racing.any():
            self._race(m, space, units, address, rows, columns, racing, before, operations,
                       earlier, active, same)  # fmt: skip

    def _race(
        self, m: Access, space: Space, units: Array, address: Array, rows: Array, columns: Array,
        racing: Array, before: Array, operations: Array, earlier: str, active: Active, same: Any,
    ) -> None:  # fmt: skip
        harmless = np.zeros(len(racing), bool)
        if earlier == "write" and same is not None and m.kind == "store":
            harmless = same()[rows]
        for kind, chosen in (("race", racing & ~harmless), ("same value", racing & harmless)):
            for operation in np.unique(operations[chosen]).tolist():
                mine = np.nonzero(chosen & (operations == operation))[0]
                n = int(mine[0])
                at = int(address[rows[n]]) + int(columns[n]) * space.unit
                where = self._name(space, at)
                line = self.report.line(operation)
                self.report.add(
                    kind, m.operation,
                    f"{_verb(m)} of {where} by {self.who(self.first + active.threads[rows[n]])}, "
                    f"not ordered after the {earlier} by {self.who(before[n])} at {line}",
                    other=operation, subject=self._subject(space, at), count=len(mine),
                )  # fmt: skip

    def _in_flight(
        self, m: Access, space: Space, times: Array, before: Array, now: Array, active: Active,
        address: Array, records: Array, earlier: str,
    ) -> None:  # fmt: skip
        early = (times == shadow.IN_FLIGHT) & (before == self.first + now)
        if not early.any():
            return
        rows, columns = np.nonzero(early)
        operation = int(shadow.operation_of(records[rows[0], columns[0]]))
        n = int(rows[0])
        kind = "wgmma in flight" if self.collective[operation] else "copy in flight"
        what = f"{'' if earlier == 'write' else 'reading '}{self.report.opcode(operation)}"
        self.report.add(
            kind, m.operation,
            f"{_verb(m)} of {self._name(space, int(address[n]))} before the thread has waited "
            f"for its {what} at {self.report.line(operation)}; "
            f"{self.who(self.first + active.threads[n])}",
            other=operation, count=int(early.any(axis=1).sum()),
        )  # fmt: skip

    def _collective(
        self, racing: Array, before: Array, times: Array, threads: Array, operations: Array
    ) -> None:
        """What a warpgroup did together is over for those who learnt so from any of its threads."""
        at = np.nonzero(racing & self.collective[operations] & (times != shadow.IN_FLIGHT))[0]
        if not len(at):
            return
        keys = np.stack((before[at], times[at], threads[at]))
        unique, back = np.unique(keys, axis=1, return_inverse=True)
        own, time, who = (np.repeat(row, 128) for row in unique)
        block = own // self.per_block * self.per_block
        start = block + (own - block) // 128 * 128
        mates = start + np.tile(np.arange(128), unique.shape[1])
        mates = np.minimum(mates, block + self.per_block - 1)
        known = self.order.ordered(mates, time, who).reshape(-1, 128).any(axis=1)
        racing[at[known[back.reshape(-1)]]] = False

    def collisions(
        self, m: Access, space: Space, units: Array, address: Array, active: Active,
        records: Array, same: Any,
    ) -> None:  # fmt: skip
        """Several threads have stored to one place in this very instruction."""
        kept = space.writes[units]
        lost = kept != records[:, None]
        if not lost.any():
            return
        rows, columns = np.nonzero(lost)
        winners = shadow.thread_of(kept[rows, columns])
        operations = np.full(len(rows), m.operation)
        self._race(m, space, units, address, rows, columns, np.ones(len(rows), bool), winners,
                   operations, "write", active, same)  # fmt: skip


def _verb(m: Access) -> str:
    return {"load": "read", "store": "write", "atomic": "atomic", "copy": "cp.async write"}[m.kind]


def _state(space: Space, address: Array, width: int) -> Array:
    """Whether first and last byte lie in arrays, and in the same."""
    starts = np.array([r.start for r in space.layout.regions] or [1 << 62])
    stops = np.array([r.stop for r in space.layout.regions] or [0])
    which = np.clip(np.searchsorted(starts, address, side="right") - 1, 0, len(starts) - 1)
    return (address >= starts[which]) & (address + width <= stops[which])
