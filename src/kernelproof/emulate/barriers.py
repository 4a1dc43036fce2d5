"""Barriers of blocks and of warps: who has come, who is missing, and when they go on."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from kernelproof.emulate.active import Active, choose
from kernelproof.emulate.checks import Checks

if TYPE_CHECKING:
    from kernelproof.emulate.program import Program

Array = Any


@dataclasses.dataclass
class Arrival:
    """Threads that wait at one barrier instruction, with where they go on and what it gives."""

    operation: int
    identity: int
    threads: Array
    after: int
    expected: Array | None  # per thread: how many threads the barrier waits for; None for all
    target: str | None
    how: str | None
    value: Array | None
    waits: bool


class BarrierUnit(Checks, abc.ABC):
    live: Array
    count: int
    groups: dict[int, Array]
    registers: list[Any]
    program: Program
    block_threads: int
    stored: bool

    def begin_barriers(self, blocks: int) -> None:
        self.arrivals: list[Arrival] = []
        self.waiting = False
        self.last_effect = np.full(self.count, -1, np.int64)
        self.block_count = blocks
        self.early_exits: set[tuple[int, int]] = set()

    # ---- warps

    def warp_barrier(self, operation: int, mask: Any, A: Active, after: int) -> int:
        """bar.warp.sync: the scheduler has brought together whom it could."""
        if np.ndim(mask) == 0 and mask == 0xFFFFFFFF and A.whole_warps():
            self.order.warp_barrier(A.threads, True)
            return after
        masks = A.spread(mask).astype(np.uint32)
        lanes = (A.threads & 31).astype(np.uint32)
        warps = A.threads >> 5
        here = np.zeros(self.count // 32, np.uint64)
        np.bitwise_or.at(here, warps, (np.uint64(1) << lanes.astype(np.uint64)))
        alive = (self.live.reshape(-1, 32).astype(np.uint64) << np.arange(32, dtype=np.uint64)).sum(
            axis=1
        )
        # Threads that have ended in good order are not waited for: only those that live elsewhere.
        missing = masks & ~here[warps].astype(np.uint32) & alive[warps].astype(np.uint32)
        unnamed = (masks >> lanes) & np.uint32(1) == 0
        for bad, what in ((missing != 0, "names lanes that do not come"),
                          (unnamed, "does not name the thread itself")):  # fmt: skip
            if bad.any():
                n = int(np.argmax(bad))
                self.report.add(
                    "absent lanes", operation,
                    f"the mask {int(masks[n]):#010x} of a warp barrier {what}; "
                    f"{self.who(self.first + A.threads[n])}",
                    subject=what, count=int(bad.sum()),
                )  # fmt: skip
        whole = bool((masks == 0xFFFFFFFF).all())
        if whole and A.whole_warps():
            self.order.warp_barrier(A.threads, True)
            return after
        for value in np.unique(masks).tolist():
            self.order.warp_barrier(A.threads[masks == value], False)
        return after

    # ---- blocks

    def barrier(
        self, operation: int, kind: str, identity: Any, count: Any, A: Active, after: int,
        result: tuple[str | None, str | None, Any],
    ) -> int | None:  # fmt: skip
        """bar.sync, bar.arrive, bar.red. Threads wait here; `_release` sends them on."""
        target, how, value = result
        identities = A.spread(identity)
        for one in np.unique(identities).tolist():
            at = None if (identities == one).all() else np.nonzero(identities == one)[0]
            expected = (
                None if count is None else A.at(at).spread(choose(count, at)).astype(np.int64)
            )
            given = None if value is None else A.at(at).spread(choose(value, at))
            threads = A.threads if at is None else A.threads[at]
            odd = expected is not None and bool((expected % 32).any())
            if one > 15 or odd:
                wanted = "all" if expected is None else int(expected[0])
                self.report.add(
                    "divergent barrier", operation,
                    f"barrier {one} for {wanted} threads; there are 16, for whole warps of 32; "
                    f"{self.who(self.first + threads[0])}",
                )  # fmt: skip
            how = None if how == "None" else how
            self.arrivals.append(
                Arrival(operation, int(one), threads, after, expected, target, how, given,
                        kind != "arrive")
            )  # fmt: skip
            if kind == "arrive":
                self.send(after, threads)
        self.waiting = True
        self._release()
        return None

    @abc.abstractmethod
    def send(self, number: int, threads: Array) -> None:
        """Let threads go on at a block."""

    @abc.abstractmethod
    def put(self, registers: list[Any], number: int, value: Any, index: Array) -> None:
        """Write a register of the threads ``index``."""

    def ended(self, threads: Array) -> None:
        """Threads have come to their end; a barrier may have waited for them only."""
        if self.waiting:
            self._release()

    def _release(self) -> None:
        """Let go the blocks in which all have come."""
        for identity in {a.identity for a in self.arrivals}:
            mine = [a for a in self.arrivals if a.identity == identity]
            here = np.zeros(self.block_count, np.int64)
            needed = self._alive()
            for arrival in mine:
                blocks = arrival.threads // self.per_block
                here += np.bincount(blocks, minlength=self.block_count)
                if arrival.expected is not None:
                    needed[blocks] = arrival.expected
            ready = (here > 0) & (here >= needed)
            if ready.any():
                self._let_go(mine, ready, needed, here)
        self.waiting = bool(self.arrivals)

    def _alive(self) -> Array:
        return self.live.reshape(self.block_count, self.per_block).sum(axis=1)

    def _let_go(self, mine: list[Arrival], ready: Array, needed: Array, here: Array) -> None:
        self.stored = True
        for arrival in mine:
            self.arrivals.remove(arrival)
        self._check_meeting(mine, ready)
        going: list[tuple[Arrival, Array]] = []
        for arrival in mine:
            goes = ready[arrival.threads // self.per_block]
            if not goes.all():
                self.arrivals.append(_part(arrival, ~goes))
            if goes.any():
                going.append((_part(arrival, goes), goes))
        threads = np.concatenate([a.threads for a, _ in going])
        blocks = threads // self.per_block
        partial = np.zeros(self.block_count, bool)
        if any(a.expected is not None for a, _ in going):
            partial = ready & (needed < self._alive())
        whole = ~partial[blocks]
        if whole.any():
            self.order.block_barrier(np.sort(threads[whole]), np.sort(blocks[whole]))
        for block in np.unique(blocks[~whole]).tolist():
            self.order.partial_barrier(np.sort(threads[blocks == block]))
        self._results([a for a, _ in going], ready)
        self._early_exits(going, whole, threads)
        for arrival, _ in going:
            if arrival.waits:
                self.send(arrival.after, arrival.threads)

    def _results(self, going: list[Arrival], ready: Array) -> None:
        if not going or going[0].how is None:
            return
        totals = np.zeros(self.block_count, np.int64)
        counts = np.zeros(self.block_count, np.int64)
        for a in going:
            blocks = a.threads // self.per_block
            assert a.value is not None
            totals += np.bincount(blocks, a.value, minlength=self.block_count).astype(np.int64)
            counts += np.bincount(blocks, minlength=self.block_count)
        for a in going:
            blocks = a.threads // self.per_block
            out: Any
            if a.how == "popc":
                out = totals[blocks].astype(np.uint32)
            elif a.how == "or":
                out = totals[blocks] > 0
            else:
                out = totals[blocks] == counts[blocks]
            if a.target in self.program.register_names:
                number = self.program.register_names.index(a.target)
                self.put(self.registers, number, out, a.threads)

    # ---- findings

    def _check_meeting(self, mine: list[Arrival], ready: Array) -> None:
        """Threads of one warp that meet the others of it at another instruction."""
        mine = [a for a in mine if a.waits]
        if len({a.operation for a in mine}) < 2:
            return
        warp_at: dict[int, Arrival] = {}
        for arrival in mine:
            threads = arrival.threads[ready[arrival.threads // self.per_block]]
            for warp in np.unique(threads >> 5).tolist():
                other = warp_at.setdefault(warp, arrival)
                if other.operation != arrival.operation:
                    thread = int(threads[threads >> 5 == warp][0])
                    self.report.add(
                        "divergent barrier", arrival.operation,
                        f"threads of one warp wait at this barrier and at the one at "
                        f"{self.report.line(other.operation)}; {self.who(self.first + thread)}",
                        other=other.operation,
                    )  # fmt: skip

    def _early_exits(
        self, going: list[tuple[Arrival, Array]], whole: Array, threads: Array
    ) -> None:
        """Threads that have ended where others of their block meet: legal in practice if they did
        nothing in between; after stores, the barrier is one that they should have come to."""
        alive = self._alive()
        started = self.block_threads
        for arrival, _ in going:
            if arrival.expected is not None:
                continue
            blocks = np.unique(arrival.threads // self.per_block)
            for block in blocks[alive[blocks] < started].tolist()[:1]:
                first = block * self.per_block
                gone = np.nonzero(~self.live[first : first + started])[0] + first
                acted = gone[self.last_effect[gone] >= 0]
                if len(acted):
                    line = self.report.line(int(self.last_effect[acted[0]]))
                    self.report.add(
                        "divergent barrier", arrival.operation,
                        f"{self.who(self.first + acted[0])} does not come to this barrier and goes "
                        f"on to {line}, while others of its block wait",
                        other=int(self.last_effect[acted[0]]),
                    )  # fmt: skip
                else:
                    self.report.add(
                        "early exit", arrival.operation,
                        f"{self.who(self.first + gone[0])} has ended before this barrier; legal on "
                        "GPUs from sm_70 on, though CUDA C++ asks that all threads come",
                    )  # fmt: skip
        self.last_effect[threads] = -1

    def stuck(self) -> bool:
        """Nobody can run. Reports barriers that never fill, and ends their threads; False when
        nobody waits at all."""
        waiting = [a for a in self.arrivals if a.waits]
        if not waiting:
            self.abandon()
            return False
        lines = sorted({self.report.line(a.operation) for a in waiting})
        first = waiting[0]
        text = "threads wait at this barrier for others that never come"
        if len(lines) > 1:
            text += f": those wait at {', '.join(lines[1:])}"
        self.report.add(
            "deadlock", first.operation, f"{text}; {self.who(self.first + first.threads[0])}",
            other=waiting[-1].operation if len(lines) > 1 else -1,
            count=sum(len(a.threads) for a in waiting),
        )  # fmt: skip
        self.abandon()
        return False

    def abandon(self) -> None:
        self.arrivals.clear()
        self.waiting = False


def _part(a: Arrival, chosen: Array) -> Arrival:
    return dataclasses.replace(
        a,
        threads=a.threads[chosen],
        expected=None if a.expected is None else a.expected[chosen],
        value=None if a.value is None else a.value[chosen],
    )
