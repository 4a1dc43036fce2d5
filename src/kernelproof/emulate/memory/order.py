"""Happens-before: what each thread knows of what the others did.

Time is one counter that every synchronisation advances. An earlier access, made at time t by
thread a, is ordered before an access of thread b if b has since learnt of a's doings up to t:

    block barrier    ``block[b]``: everything that the block did before this time
    warp barrier     ``warp[b, lane of a]``: likewise for the lanes of its warp
    fence + atomic   ``rows[row[b]][a]``: what b has acquired from threads anywhere; a vector clock,
                     kept only for threads that acquired something

A release is a fence followed by a strong write (or a write with .release semantics); reading that
place by a strong read acquires. CUDA's own samples read a ticket with a plain atomic and no second
fence, so none is asked for.

Asynchronous copies into shared memory are done by nobody's thread: each block has `AGENTS` more
clocks for them, one per mbarrier as far as these go. Only who learns from the mbarrier that a copy
has landed is ordered after it, and that is not the thread that asked for it, before it has waited.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
AGENTS = 16


class Order:
    """Clocks of the threads of one launch. ``threads`` counts those of all blocks, ``per_block``
    those of one, both with warps filled up to 32."""

    def __init__(self, threads: int, per_block: int) -> None:
        self.now = 1
        self.threads = threads
        self.per_block = per_block
        self.slots = threads + threads // per_block * AGENTS
        self.rows: list[Array] = []
        self.places: dict[tuple[str, int], Array] = {}  # address -> what was released there
        self.first = 0

    def begin(self, first: int, count: int) -> None:
        """Start on the threads ``first`` ... ``first + count`` of the launch."""
        self.first = first
        self.block = np.zeros(count, np.int64)
        self.warp = np.zeros((count, 32), np.int64)
        self.row = np.full(count, -1, np.int64)
        self.fenced = np.zeros(count, np.int64)  # time of each thread's last fence
        # What each thread has acquired last from a place, so that spinning costs little.
        self.acquired: dict[tuple[int, tuple[str, int]], Array] = {}

    def tick(self) -> int:
        self.now += 1
        return self.now

    # ---- barriers; threads are numbered within the batch here

    def block_barrier(self, threads: Array, groups: Array) -> None:
        """Threads of whole blocks have met; ``groups`` numbers each thread's block."""
        self.block[threads] = self.tick()
        if self.rows:
            self._join_rows(threads, groups)

    def partial_barrier(self, threads: Array) -> None:
        """Some warps of one block have met (a named barrier with a count)."""
        now = self.tick()
        if self.rows or len(threads):
            joined = np.zeros(self.slots, np.int64)
            for row in np.unique(self.row[threads]):
                if row >= 0:
                    np.maximum(joined, self.rows[row], out=joined)
            whole = self.first + threads[0] // self.per_block * self.per_block
            part = joined[whole : whole + self.per_block]
            np.maximum(part, self.block[threads].min(), out=part)
            joined[self.first + threads] = now
            self._set_rows(threads, joined)

    def warp_barrier(self, threads: Array, whole: bool) -> None:
        """Threads of warps have met; ``whole``: all 32 of each."""
        now = self.tick()
        if whole:
            self.warp[threads] = now
        else:
            warps = threads >> 5
            for warp in np.unique(warps):
                members = threads[warps == warp]
                known = self.warp[members].max(axis=0)
                known[members & 31] = now
                self.warp[members] = known
        if self.rows:
            self._join_rows(threads, threads >> 5)

    def _join_rows(self, threads: Array, groups: Array) -> None:
        for group in np.unique(groups[self.row[threads] >= 0]):
            members = threads[groups == group]
            rows = [r for r in np.unique(self.row[members]) if r >= 0]
            joined = self.rows[rows[0]]
            for row in rows[1:]:
                joined = np.maximum(joined, self.rows[row])
            self._set_rows(members, joined)

    def _set_rows(self, threads: Array, clock: Array) -> None:
        if len(self.rows) > 2 * len(self.row) + 256:
            self._drop_unused()
        self.rows.append(clock)
        self.row[threads] = len(self.rows) - 1

    def _drop_unused(self) -> None:
        used = np.unique(self.row[self.row >= 0])
        self.rows = [self.rows[n] for n in used.tolist()]
        self.row = np.where(self.row >= 0, np.searchsorted(used, self.row), -1)

    # ---- release and acquire

    def knowledge(self, thread: int, own: int) -> Array:
        """The vector clock of a thread of the batch, over all threads of the launch; ``own``: the
        time up to which its own accesses count."""
        return self.together(np.array([thread]), own)

    def together(self, threads: Array, own: int) -> Array:
        """The same of several threads: what any of them knows."""
        clock = np.zeros(self.slots, np.int64)
        for row in np.unique(self.row[threads]).tolist():
            if row >= 0:
                np.maximum(clock, self.rows[row], out=clock)
        blocks, warps = threads // self.per_block, threads >> 5
        for block in np.unique(blocks).tolist():
            start = self.first + block * self.per_block
            part = clock[start : start + self.per_block]
            np.maximum(part, self.block[threads[blocks == block]].max(), out=part)
        for warp in np.unique(warps).tolist():
            lanes = clock[self.first + warp * 32 : self.first + warp * 32 + 32]
            np.maximum(lanes, self.warp[threads[warps == warp]].max(axis=0), out=lanes)
        clock[self.first + threads] = own
        return clock

    def fence(self, threads: Array) -> None:
        self.fenced[threads] = self.tick()

    def release(self, threads: Array, places: Array, space: str, full: bool) -> None:
        """Strong writes hand on what was done before each thread's last fence; with ``full``
        (.release semantics) all that it did."""
        time = self.now + 1
        for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
            self._release(thread, (space, place), time if full else int(self.fenced[thread]))
        self.tick()

    def acquire(self, threads: Array, places: Array, space: str) -> None:
        """Strong reads."""
        if self.places:
            for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
                self._acquire(thread, (space, place))

    def exchange(self, threads: Array, places: Array, space: str, full: bool) -> None:
        """Atomics: each thread reads what the one before it has written."""
        if not self.places and not full and not self.fenced.any():
            return
        time = self.now + 1
        for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
            self._acquire(thread, (space, place))
            self._release(thread, (space, place), time if full else int(self.fenced[thread]))
        self.tick()

    def _release(self, thread: int, place: tuple[str, int], own: int) -> None:
        if own:
            clock = self.knowledge(thread, own)
            held = self.places.get(place)
            self.places[place] = clock if held is None else np.maximum(held, clock)

    def _acquire(self, thread: int, place: tuple[str, int]) -> None:
        clock = self.places.get(place)
        if clock is not None and self.acquired.get((thread, place)) is not clock:
            self.acquired[thread, place] = clock
            self.learn(thread, clock)

    def learn(self, thread: int, clock: Array) -> None:
        """A thread of the batch comes to know what a vector clock holds."""
        self.learn_together(np.array([thread]), clock)

    def learn_together(self, threads: Array, clock: Array) -> None:
        """The same for several threads."""
        rows = self.row[threads]
        changed = []
        for row in np.unique(rows).tolist():
            if row < 0:
                changed.append((threads[rows == row], clock))
            elif (clock > self.rows[row]).any():
                changed.append((threads[rows == row], np.maximum(self.rows[row], clock)))
        for mine, known in changed:
            self._set_rows(mine, known)

    # ---- who

    def agent(self, block: int, number: int) -> int:
        """What copies for mbarrier ``number`` of a block of the launch are recorded under."""
        return self.threads + block * AGENTS + number % AGENTS

    def block_of(self, who: Array) -> Array:
        """The block of the launch of threads and agents."""
        agents = (who - self.threads) // AGENTS
        return np.where(who < self.threads, who // self.per_block, agents)

    # ---- the question

    def ordered(self, before: Array, times: Array, threads: Array) -> Array:
        """Whether accesses of threads ``before`` (of the launch) at ``times`` precede what
        ``threads`` (of the batch) do now."""
        own = self.first + threads
        same_block = before // self.per_block == own // self.per_block
        same_warp = before >> 5 == own >> 5
        out = before == own
        out |= same_block & (times < self.block[threads])
        out |= same_warp & (times < self.warp[threads, before & 31])
        if self.rows:
            rows = self.row[threads]
            for row in np.unique(rows[~out]):
                if row >= 0:
                    mine = (rows == row) & ~out
                    out[mine] = times[mine] < self.rows[row][before[mine]]
        return out
