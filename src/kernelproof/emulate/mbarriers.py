"""mbarrier objects in shared memory (ISA 9.7.13.15), and the copies that complete on them.

An object counts arrivals and bytes; when both are at their goal its phase is complete and the next
begins. What arrives hands on what it did before; a wait that succeeds learns what was handed on in
the phases before, and nothing of the one that is open.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose
from kernelproof.emulate.copies import Copy, CopyUnit
from kernelproof.emulate.memory.access import Access

Array = Any
_MOST = (1 << 20) - 1  # arrivals (ISA 9.7.13.15.2)


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
    copies: list[tuple[Copy, int]] = dataclasses.field(default_factory=list)


class MBarrierUnit(CopyUnit):
    """``objects``: by the place of their word in the shared memory of the batch."""

    objects: dict[int, Object]

    def mbarrier_init(self, m: Access, address: Any, count: Any, A: Active, guard: Any) -> None:
        positions = A.positions(guard)
        counts = A.spread(count).astype(np.uint64)
        self.store(m, address, (counts,), A, guard)
        for place, _, at in self._places(m, address, A, positions):
            wanted = int(counts[at])
            self.objects[place] = Object(wanted, wanted)

    def mbarrier_gone(self, m: Access, address: Any, A: Active, guard: Any) -> None:
        """mbarrier.inval"""
        for place, _, _ in self._places(m, address, A, A.positions(guard)):
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
        for place, thread, at in self._places(m, address, A, A.positions(guard)):
            item = self._object(m, place, thread)
            if item is None:
                continue
            out[at] = (item.phase << 32) | item.pending
            if more is not None:
                item.bytes += int(more[at])
            if not counts[at]:
                continue
            if item.pending < counts[at]:
                self.report.add(
                    "deadlock", m.operation,
                    f"more arrivals than the {item.expected} of the mbarrier; "
                    f"{self.who(self.first + thread)}",
                )  # fmt: skip
            if drop:
                item.expected -= int(counts[at])
            item.pending -= int(counts[at])
            self._hand_on(item, thread)
            self._advance(item)
        self.order.tick()
        self.stored = True
        return out

    def mbarrier_wait(
        self, m: Access, address: Any, state: Any, parity: bool, A: Active, guard: Any
    ) -> Any:
        """test_wait and try_wait: whether the phase of ``state``, or of this parity, is over."""
        out = np.zeros(A.count, bool)
        self._touch(m, address, A, A.positions(guard))
        states = A.spread(state).astype(np.uint64)
        for place, thread, at in self._places(m, address, A, A.positions(guard)):
            item = self._object(m, place, thread)
            if item is None:
                out[at] = True
                continue
            asked = int(states[at]) & 1 if parity else int(states[at]) >> 32
            out[at] = item.phase & 1 != asked if parity else item.phase != asked
            if out[at] and item.known is not None:
                self.order.learn(thread, item.known)
        return out

    def mbarrier_copies(
        self, m: Access, address: Any, counted: bool, A: Active, guard: Any
    ) -> None:
        """cp.async.mbarrier.arrive: an arrival once the thread's copies so far have landed, of
        which ``counted`` says that the object's count has room (.noinc)."""
        now = self.order.now
        for place, thread, _ in self._places(m, address, A, A.positions(guard)):
            item = self._object(m, place, thread)
            if item is None:
                continue
            left = []
            for copy in self.copies:
                mine = copy.threads == thread
                if mine.any():
                    item.copies.append((copy.part(mine), now))
                if not mine.all():
                    left.append(copy.part(~mine))
            self.copies = left
            self._hand_on(item, thread)
            if counted:
                item.pending -= 1
                self._advance(item)
        self.order.tick()
        self.stored = True

    def copy_bulk(
        self, to: Access, source: Access, where: Any, at: Any, size: Any, barrier: Any, A: Active,
        guard: Any,
    ) -> None:  # fmt: skip
        """cp.async.bulk from global to shared memory, whose bytes an mbarrier counts."""
        positions = A.positions(guard)
        lists = [A.spread(x) for x in (where, at, size)]
        for place, thread, n in self._places(to, barrier, A, positions):
            item = self._object(to, place, thread)
            start, origin, count = (int(x[n]) for x in lists)
            if item is None or count == 0:
                continue
            if (start | origin | count) & 15:
                self.report.add(
                    "misaligned", to.operation,
                    f"a bulk copy of {count} bytes from {origin:#x} to {start:#x}: all three are "
                    f"multiples of 16; {self.who(self.first + thread)}",
                )  # fmt: skip
                continue
            one = Active(np.array([thread]), np.array([thread]))
            before = len(self.copies)
            # In steps that the records know: 16 bytes at a time.
            steps = np.arange(0, count, 16)
            many = Active(np.full(len(steps), thread), np.full(len(steps), thread))
            self.copy_async(to, source, start + steps, origin + steps, None, many, None)
            for copy in self.copies[before:]:
                item.copies.append((copy, self.order.now))
            del self.copies[before:]
            self._hand_on(item, int(one.threads[0]))
            item.bytes -= count
            self._advance(item)
        self.order.tick()
        self.stored = True

    # ---- inside

    def _places(
        self, m: Access, address: Any, A: Active, positions: Array | None
    ) -> list[tuple[int, int, int]]:
        """(place, thread, position in A) of each thread that takes part."""
        at = np.arange(A.count) if positions is None else positions
        where = A.spread(address)[at].astype(np.int64)
        threads = A.threads[at]
        places = where + self.shared_base[threads]
        return list(zip(places.tolist(), threads.tolist(), at.tolist(), strict=True))

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

    def _hand_on(self, item: Object, thread: int) -> None:
        clock = self.order.knowledge(thread, self.order.now + 1)
        item.given = clock if item.given is None else np.maximum(item.given, clock)

    def _advance(self, item: Object) -> None:
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
