"""cp.async: reads when it is issued, writes when the thread has waited for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import GLOBAL_BASE
from kernelproof.emulate.memory_unit import MemoryUnit

Array = Any


@dataclasses.dataclass
class Copy:
    """Some cp.async on their way: ``group`` of each thread, destination and data."""

    operation: int
    threads: Array
    group: Array
    index: Array
    data: Array
    units: Array
    asynchronous: bool = False  # by the async proxy

    def part(self, chosen: Array) -> Copy:
        """Of some of the threads."""
        return Copy(
            self.operation, self.threads[chosen], self.group[chosen], self.index[chosen],
            self.data[chosen], self.units[chosen], self.asynchronous,
        )  # fmt: skip


class CopyUnit(MemoryUnit):
    """``group``: per thread, the number of the group that is open."""

    group: Array
    copies: list[Copy]

    def copy_async(
        self, to: Access, source: Access, where: Any, at: Any, given: Any, A: Active, guard: Any
    ) -> None:
        """cp.async: reads now, writes when waited for; bytes beyond ``given`` become zero."""
        positions = A.positions(guard)
        active = A.at(positions)
        if active.count == 0:
            return
        size = to.count
        where = active.spread(choose(where, positions))
        at = active.spread(choose(at, positions)) - GLOBAL_BASE
        data = np.zeros((active.count, size), np.uint8)
        counts = np.full(active.count, size) if given is None else active.spread(
            choose(given, positions)
        )  # fmt: skip
        for count in np.unique(counts).tolist():
            mine = np.nonzero(counts == count)[0]
            if count:
                m = source if count == size else dataclasses.replace(source, count=count)
                part = active.at(mine)
                keep = self.usable(source, self.globals, at[mine], part) if count == size else None
                if keep is not None:
                    mine, part = mine[keep], part.at(keep)
                if len(mine):
                    self.reads(m, self.globals, at[mine], at[mine], part)
                    data[mine, :count] = self.globals.data[at[mine][:, None] + np.arange(count)]
        space, address, index = self._locate(to, where, active)
        keep = self.usable(to, space, address, active)
        if keep is not None:
            active, address, index, data = (
                active.at(keep), address[keep], index[keep], data[keep],
            )  # fmt: skip
        if active.count == 0:
            return
        units = space.units(index, size)
        self.writes(
            to, space, address, index, active, lambda: None, lambda: np.zeros(active.count, bool)
        )
        self.copies.append(
            Copy(to.operation, active.threads, self.group[active.threads], index, data, units)
        )

    def copy_commit(self, A: Active, guard: Any) -> None:
        self.group[A.at(A.positions(guard)).threads] += 1

    def copy_wait(self, keep: int, A: Active, guard: Any) -> None:
        """Complete all but the last ``keep`` committed groups; -1: everything."""
        active = A.at(A.positions(guard))
        waits = np.zeros(len(self.group), bool)
        waits[active.threads] = True
        left = []
        for copy in self.copies:
            limit = self.group[copy.threads] - keep
            done = waits[copy.threads] & ((copy.group < limit) if keep >= 0 else True)
            if done.any():
                self.deposit(copy, done, self.order.now)
            if not done.all():
                left.append(copy.part(~done))
        self.copies = left

    def deposit(self, copy: Copy, done: Array, time: int) -> None:
        """The data arrives; for others it was written at ``time``."""
        space = self.shared
        index, units, threads = copy.index[done], copy.units[done], copy.threads[done]
        records = shadow.record(
            shadow.IN_FLIGHT, copy.operation, (self.first + threads).astype(np.int64)
        )
        size = copy.data.shape[1]
        space.data[index[:, None] + np.arange(size)] = copy.data[done]
        mine = space.writes[units] == records[:, None]
        landed = shadow.record(time, copy.operation, (self.first + threads).astype(np.int64))
        whole = np.broadcast_to(landed[:, None], units.shape)
        space.writes[units[mine]] = whole[mine]
        if not copy.asynchronous:
            self.soil(units)
