"""mbarrier objects in shared memory (ISA 9.7.13.15), and the copies that complete on them.

An object counts arrivals and bytes; when both are at their goal its phase is complete and the next
begins. What arrives hands on what it did before; a wait that succeeds learns what was handed on in
the phases before, and nothing of the one that is open.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose
from kernelproof.emulate.copies import Copy, CopyUnit
from kernelproof.emulate.memory.access import Access

Array = Any


@dataclasses.dataclass
class Object:
    """``pending``: arrivals that the phase still needs, ``expected``: those of the next one;
    ``bytes``: of copies under way. ``given``, ``known``: clocks of the open phase and of those
    before it."""

    pending: int
    expected: int
    phase: int = 0
    bytes: int = 0
    given: Array | None = None
    known: Array | None = None
    agent: int = 0  # of `Order`
    copies: list[tuple[Copy, int]] = dataclasses.field(default_factory=list)


@functools.cache
def _word(m: Access) -> Access:
    return dataclasses.replace(m, kind="load", space="shared", dtype="u8", count=1)


class MBarrierUnit(CopyUnit):
    """``objects``: by the place of their word in the shared memory of the batch."""

    objects: dict[int, Object]

    def mbarrier_init(self, m: Access, address: Any, count: Any, A: Active, guard: Any) -> None:
        counts = A.spread(count).astype(np.uint64)
        self.store(m, address, (counts,), A, guard)
        for place, _, at in self._objects_at(m, address, A, guard):
            wanted = int(counts[at[0]])
            block = place // self.shared.size
            agent = self.order.agent(self.first // self.per_block + block, len(self.objects))
            self.objects[place] = Object(wanted, wanted, agent=agent)

    def mbarrier_gone(self, m: Access, address: Any, A: Active, guard: Any) -> None:
        """mbarrier.inval"""
        for place, _, _ in self._objects_at(m, address, A, guard):
            self.objects.pop(place, None)

    def mbarrier_arrive(
        self, m: Access, address: Any, count: Any, nbytes: Any, drop: bool, A: Active, guard: Any
    ) -> Any:
        """Arrive, with ``nbytes`` expected first; gives the state before: the phase and what was
        pending. ``count`` 0 only expects bytes."""
        out = np.zeros(A.count, np.uint64)
        self._touch(m, address, A, A.positions(guard))
        counts = A.spread(count).astype(np.int64)
        more = None if nbytes is None else A.spread(nbytes).astype(np.int64)
        for place, threads, at in self._objects_at(m, address, A, guard):
            item = self._object(m, place, int(threads[0]))
            if item is None:
                continue
            if counts[at].sum() <= item.pending:
                parts = [(threads, at)]
            else:  # a phase ends among these arrivals
                parts = [(threads[n : n + 1], at[n : n + 1]) for n in range(len(at))]
            for some, where in parts:
                self._arrive(m, item, some, counts[where], drop, out, where, more)
        self.order.tick()
        self.stored = True
        return out

    def _arrive(
        self, m: Access, item: Object, threads: Array, counts: Array, drop: bool, out: Array,
        at: Array, more: Array | None,
    ) -> None:  # fmt: skip
        total = int(counts.sum())
        before = item.pending - np.cumsum(counts) + counts
        out[at] = (item.phase << 32) | before.clip(0).astype(np.uint64)
        if more is not None:
            item.bytes += int(more[at].sum())
        if not total:
            return
        if item.pending < total:
            self.report.add(
                "deadlock", m.operation,
                f"more arrivals than the {item.expected} of the mbarrier; "
                f"{self.who(self.first + threads[0])}",
            )  # fmt: skip
        if drop:
            item.expected -= total
        item.pending -= total
        self._hand_on(item, threads)
        self.advance(item)

    def mbarrier_wait(
        self, m: Access, address: Any, state: Any, parity: bool, learns: bool, A: Active, guard: Any
    ) -> Any:
        """test_wait and try_wait: whether the phase of ``state``, or of this parity, is over;
        ``learns``: with acquire semantics, as by default."""
        out = np.zeros(A.count, bool)
        self._touch(m, address, A, A.positions(guard))
        states = A.spread(state).astype(np.uint64)
        for place, threads, at in self._objects_at(m, address, A, guard):
            item = self._object(m, place, int(threads[0]))
            if item is None:
                out[at] = True
                continue
            asked = states[at] & np.uint64(1) if parity else states[at] >> np.uint64(32)
            over = asked != (item.phase & 1 if parity else item.phase)
            out[at] = over
            if learns and over.any() and item.known is not None:
                self.order.learn_together(threads[over], item.known)
        return out

    def mbarrier_copies(
        self, m: Access, address: Any, counted: bool, A: Active, guard: Any
    ) -> None:
        """cp.async.mbarrier.arrive: an arrival once the thread's copies so far have landed, of
        which ``counted`` says that the object's count has room (.noinc)."""
        now = self.order.now
        for place, threads, _ in self._objects_at(m, address, A, guard):
            item = self._object(m, place, int(threads[0]))
            if item is None:
                continue
            left = []
            for copy in self.copies:
                mine = np.isin(copy.threads, threads)
                if mine.any():
                    item.copies.append((copy.part(mine), now))
                if not mine.all():
                    left.append(copy.part(~mine))
            self.copies = left
            self._hand_on(item, threads)
            if counted:
                item.pending -= len(threads)
                self.advance(item)
        self.order.tick()
        self.stored = True

    def complete(self, item: Object, thread: int, copies: list[Copy], nbytes: int) -> None:
        """Bytes of asynchronous copies by ``thread`` that land when the phase is complete."""
        item.copies += [(copy, self.order.now) for copy in copies]
        self._hand_on(item, np.array([thread]))
        assert item.given is not None
        item.given[item.agent] = self.order.now + 1
        item.bytes -= nbytes
        self.advance(item)

    def one_object(self, m: Access, address: int, thread: int) -> Object | None:
        """The object at an address of ``thread``; None, reported, where none is initialised."""
        one = Active(np.array([thread]), np.array([thread]))
        self._touch(_word(m), np.array([address]), one, None)
        place, _ = self.shared_place(m, np.array([address]), np.array([thread]))
        return self._object(m, int(place[0]), thread)

    # ---- inside

    def _objects_at(
        self, m: Access, address: Any, A: Active, guard: Any
    ) -> Iterator[tuple[int, Array, Array]]:
        """(place, threads, their positions in A) of each object that is named."""
        positions = A.positions(guard)
        at = np.arange(A.count) if positions is None else positions
        if not len(at):
            return
        threads = A.threads[at]
        places, _ = self.shared_place(m, A.spread(address)[at].astype(np.int64), threads)
        for place in np.unique(places).tolist():
            mine = places == place
            yield place, threads[mine], at[mine]

    def _touch(self, m: Access, address: Any, A: Active, positions: Array | None) -> None:
        """An object must be seen to be initialised: who has not synchronised with that, races."""
        active = A.at(positions)
        if active.count == 0:
            return
        where = active.spread(choose(A.spread(address), positions))
        space, where, index = self._locate(m, where, active)
        keep = self.usable(m, space, where, active)
        if keep is not None:
            active, where, index = active.at(keep), where[keep], index[keep]
        if active.count:
            self.reads(m, space, where, index, active)

    def _object(self, m: Access, place: int, thread: int) -> Object | None:
        item = self.objects.get(place)
        if item is None:
            self.report.add(
                "uninitialised", m.operation,
                f"there is no initialised mbarrier here; {self.who(self.first + thread)}",
            )  # fmt: skip
        return item

    def _hand_on(self, item: Object, threads: Array) -> None:
        clock = self.order.together(threads, self.order.now + 1)
        item.given = clock if item.given is None else np.maximum(item.given, clock)

    def advance(self, item: Object) -> None:
        """Begin the next phase where this one is complete."""
        if item.pending > 0 or item.bytes != 0:
            return
        for copy, time in item.copies:
            self.deposit(copy, np.ones(len(copy.threads), bool), time)
        item.copies.clear()
        if item.given is not None:
            known = item.given if item.known is None else np.maximum(item.known, item.given)
            item.known = known
        item.given = None
        item.phase += 1
        item.pending = item.expected
