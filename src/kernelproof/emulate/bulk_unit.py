"""Bulk copies (ISA 9.7.9.25) and st.async: they read when they are issued; what they write into
shared memory lands when the phase of their mbarrier is complete, and what they write into global
memory, and their reads of shared memory, are over when their thread has waited for the group."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose
from kernelproof.emulate.copies import Copy
from kernelproof.emulate.mbarriers import MBarrierUnit, Object
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import GLOBAL_BASE
from kernelproof.emulate.memory.space import Space

Array = Any


@dataclasses.dataclass
class Outgoing:
    """Copies of one instruction out of shared memory: units that are read and those that are
    written."""

    operation: int
    thread: int
    reads: Array
    writes: Array


@dataclasses.dataclass
class Groups:
    """Of one thread: what it has not committed, and the groups that it has, oldest first."""

    open: list[Outgoing] = dataclasses.field(default_factory=list)
    closed: list[list[Outgoing]] = dataclasses.field(default_factory=list)


class BulkUnit(MBarrierUnit):
    """``bulk``: by thread."""

    bulk: dict[int, Groups]

    def copy_bulk(
        self, to: Access, source: Access, where: Any, at: Any, size: Any, barrier: Any, mask: Any,
        A: Active, guard: Any,
    ) -> None:  # fmt: skip
        """cp.async.bulk into shared memory, whose bytes an mbarrier counts; from global memory, or
        from the block's own shared memory to that of its cluster."""
        for thread, (start, origin, count, word, blocks) in self.one_by_one(
            A, guard, where, at, size, barrier, mask
        ):
            if not self._aligned(to, thread, start, origin, count):
                continue
            data = self._source(source, thread, origin, count)
            steps = np.arange(0, count, 16)
            for into, object_ in self.targets(start, word, blocks):
                item = self.one_object(to, object_, thread)
                if item is not None and count:
                    copies = self.land_later(to, thread, item, into + steps, data)
                    self.complete(item, thread, copies, count)
        self.order.tick()
        self.stored = True

    def store_bulk(
        self, to: Access, source: Access, where: Any, at: Any, size: Any, A: Active, guard: Any
    ) -> None:
        """cp.async.bulk from shared to global memory, in the thread's open group."""
        for thread, (start, origin, count) in self.one_by_one(A, guard, where, at, size):
            if self._aligned(to, thread, start, origin, count) and count:
                steps = np.arange(0, count, 16)
                data, units = self.read_async(source, thread, origin + steps)
                self.write_out(to, thread, start + steps, data, units)
        self.order.tick()
        self.stored = True

    def store_async(
        self, to: Access, where: Any, values: tuple[Any, ...], barrier: Any, A: Active, guard: Any
    ) -> None:
        """st.async: like a bulk copy of the values of one thread, by the generic proxy."""
        columns = [A.spread(value) for value in values]
        data = np.stack(columns, 1).view(np.uint8).reshape(A.count, -1)
        position = np.arange(A.count)
        for thread, (start, word, n) in self.one_by_one(A, guard, where, barrier, position):
            item = self.one_object(to, word, thread)
            if item is not None:
                row = data[n : n + 1]
                place = np.array([start])
                copies = self.land_later(to, thread, item, place, row, asynchronous=False)
                self.complete(item, thread, copies, row.shape[1])
        self.order.tick()
        self.stored = True

    def bulk_commit(self, A: Active, guard: Any) -> None:
        """cp.async.bulk.commit_group"""
        for thread in A.at(A.positions(guard)).threads.tolist():
            groups = self.bulk.get(thread)
            if groups is not None:
                groups.closed.append(groups.open)
                groups.open = []

    def bulk_wait(self, keep: int, only_reads: bool, A: Active, guard: Any) -> None:
        """cp.async.bulk.wait_group, with .read only for the reads of shared memory."""
        for thread in A.at(A.positions(guard)).threads.tolist():
            groups = self.bulk.get(thread)
            if groups is None:
                continue
            done = groups.closed[: len(groups.closed) - keep]
            for out in (out for group in done for out in group):
                self.over(self.shared, out.reads, out.operation, thread)
                out.reads = out.reads[:0]
                if not only_reads:
                    units = out.writes
                    early = shadow.record(shadow.IN_FLIGHT, out.operation, self.first + thread)
                    mine = units[self.globals.writes[units] == early]
                    landed = shadow.record(self.order.now, out.operation, self.first + thread)
                    self.globals.writes[mine] = landed
            if not only_reads:
                groups.closed = groups.closed[len(done) :]
        self.order.tick()

    def left_reading(self, threads: Array) -> None:
        """Threads whose block has ended: shared memory that is still read is gone."""
        for thread in set(self.bulk) & set(threads.tolist()):
            groups = self.bulk.pop(thread)
            for out in (out for group in (*groups.closed, groups.open) for out in group):
                if len(out.reads):
                    self.report.add(
                        "copy in flight", out.operation,
                        "the block ends while this copy may still read its shared memory; wait for "
                        "it with cp.async.bulk.wait_group.read; "
                        f"{self.who(self.first + thread)}",
                    )  # fmt: skip

    # ---- parts that tensor copies and wgmma share

    def one_by_one(self, A: Active, guard: Any, *values: Any) -> Any:
        """(thread, values as ints) of each thread that takes part."""
        positions = A.positions(guard)
        active = A.at(positions)
        lists = [
            (active.spread(choose(value, positions))).astype(np.int64).tolist() for value in values
        ]
        yield from zip(active.threads.tolist(), zip(*lists, strict=True), strict=True)

    def targets(self, start: int, word: int, blocks: int) -> list[tuple[int, int]]:
        """(destination, mbarrier) in each block of the cluster that ``blocks`` names by bits; as
        they are for -1."""
        if blocks < 0:
            return [(start, word)]
        ranks = [rank for rank in range(16) if blocks >> rank & 1]
        inside = (1 << 24) - 1
        return [((r + 1) << 24 | start & inside, (r + 1) << 24 | word & inside) for r in ranks]

    def land_later(
        self, to: Access, thread: int, item: Object, address: Array, data: Array,
        asynchronous: bool = True,
    ) -> list[Copy]:  # fmt: skip
        """Check and record writes of ``data`` (a row to each address) that are under way until the
        phase of ``item`` is complete."""
        many = Active(np.full(len(address), thread), np.full(len(address), thread))
        space, where, index = self._locate(to, address, many)
        keep = self.usable(to, space, where, many)
        if keep is not None:
            many, where, index, data = many.at(keep), where[keep], index[keep], data[keep]
        if many.count == 0:
            return []
        units = space.units(index, to.width)
        if asynchronous:
            self.proxy_seen(to, space, units, where, many)
            if self.dirty is not None:
                self.dirty[units] = False
        zeros = np.zeros(many.count, bool)
        self.writes(to, space, where, index, many, lambda: None, lambda: zeros)
        early = shadow.record(shadow.IN_FLIGHT, to.operation, np.int64(item.agent))
        space.writes[units] = early
        group = np.zeros(many.count, np.int64)
        agents = np.full(many.count, item.agent - self.first)
        return [Copy(to.operation, agents, group, index, data, units, asynchronous)]

    def read_async(self, m: Access, thread: int | Array, address: Array) -> tuple[Array, Array]:
        """Bytes of shared memory, a row to each address, and the units that stay in use. Rows
        outside of memory hold 0xFF. ``thread``: one, or one for each address."""
        many = Active(np.full(len(address), thread), np.full(len(address), thread))
        data = np.full((len(address), m.width), 0xFF, np.uint8)
        rows = np.arange(len(address))
        space, where, index = self._locate(m, address, many)
        keep = self.usable(m, space, where, many)
        if keep is not None:
            rows, many, where, index = keep, many.at(keep), where[keep], index[keep]
        if many.count == 0:
            return data, np.zeros(0, np.int64)
        units = space.units(index, m.width)
        self.proxy_seen(m, space, units, where, many)
        self.reads(m, space, where, index, many, shadow.IN_FLIGHT)
        data[rows] = space.data[index[:, None] + np.arange(m.width)]
        return data, units.reshape(-1)

    def write_out(self, to: Access, thread: int, address: Array, data: Array, reads: Array) -> None:
        """Rows of ``data`` to global addresses; part of the thread's open group."""
        many = Active(np.full(len(address), thread), np.full(len(address), thread))
        where = address - GLOBAL_BASE
        # A box may lie wholly outside of its tensor, with no row to store.
        keep = self.usable(to, self.globals, where, many) if len(where) else None
        if keep is not None:
            many, where, data = many.at(keep), where[keep], data[keep]
        units = np.zeros(0, np.int64)
        if many.count:
            at = where[:, None] + np.arange(data.shape[1])

            def put() -> None:
                self.globals.data[at] = data

            def same() -> Array:
                return (self.globals.data[at] == data).all(axis=1)

            self.writes(to, self.globals, where, where, many, put, same)
            units = self.globals.units(where, to.width).reshape(-1)
        out = Outgoing(to.operation, thread, reads, units)
        self.bulk.setdefault(thread, Groups()).open.append(out)

    def over(self, space: Space, units: Array, operation: int, thread: int) -> None:
        """Reads that were under way end now."""
        early = shadow.record(shadow.IN_FLIGHT, operation, self.first + thread)
        landed = shadow.record(self.order.now, operation, self.first + thread)
        for reads in (space.high, space.low, space.other):
            reads[units[reads[units] == early]] = landed

    def _source(self, source: Access, thread: int, origin: int, count: int) -> Array:
        address = origin + np.arange(0, count, 16)
        if source.space == "shared":
            data, units = self.read_async(source, thread, address)
            self.over(self.shared, units, source.operation, thread)
            return data
        many = Active(np.full(len(address), thread), np.full(len(address), thread))
        data = np.zeros((len(address), 16), np.uint8)
        where = address - GLOBAL_BASE
        keep = self.usable(source, self.globals, where, many)
        rows = np.arange(len(where)) if keep is None else keep
        if len(rows):
            self.reads(source, self.globals, where[rows], where[rows], many.at(rows))
            data[rows] = self.globals.data[where[rows][:, None] + np.arange(16)]
        return data

    def _aligned(self, to: Access, thread: int, start: int, origin: int, count: int) -> bool:
        if not (start | origin | count) & 15:
            return True
        self.report.add(
            "misaligned", to.operation,
            f"a bulk copy of {count} bytes from {origin:#x} to {start:#x}: all three are "
            f"multiples of 16; {self.who(self.first + thread)}",
        )  # fmt: skip
        return False
