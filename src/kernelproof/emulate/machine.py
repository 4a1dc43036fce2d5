"""Running a program: threads in groups by their next block, the smallest first.

All threads of a batch of blocks run together. Those at the same basic block form a group, which is
executed at once; the group with the smallest block number goes first, so that diverged threads meet
again where the code does. Every `_FAIR` steps the group that has waited longest goes instead: a
thread that spins must not starve the one it waits for.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active
from kernelproof.emulate.checks import Restart
from kernelproof.emulate.clusters import ClusterUnit
from kernelproof.emulate.memory.layout import GLOBAL_BASE, WINDOWS, Layout, Region
from kernelproof.emulate.memory.order import Order
from kernelproof.emulate.memory.space import MAX_TIME, THREADS, Space
from kernelproof.emulate.program import Program
from kernelproof.emulate.report import Report
from kernelproof.emulate.wgmma_unit import WgmmaUnit
from kernelproof.errors import UnsupportedError

Array = Any

_FAIR = 64
_BATCH_THREADS = 16384
_BATCH_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Limits:
    """``steps``: groups executed in one launch. ``idle``: steps without a store, a barrier or an
    end of a thread before the launch counts as stuck. ``nbytes``: of memory with its records."""

    steps: int = 2_000_000
    idle: int = 20_000
    nbytes: int = 4 << 30


class Machine(WgmmaUnit, ClusterUnit):
    """One launch. Findings go to ``report``; memory is changed in ``space``."""

    def __init__(
        self, program: Program, space: Space, grid: tuple[int, int, int],
        block: tuple[int, int, int], dynamic: int, parameters: Array, report: Report,
        limits: Limits, split: bool, seed: int | None, cluster: tuple[int, int, int] = (1, 1, 1),
    ) -> None:  # fmt: skip
        self.program = program
        self.globals = space
        self.grid, self.block = grid, block
        self.dynamic = dynamic
        self.parameters = parameters
        self.report = report
        self.limits = limits
        self.split = split
        self.random = None if seed is None else np.random.default_rng(seed)
        self.block_threads = int(np.prod(block))
        self.per_block = -(-self.block_threads // 32) * 32
        self.blocks = int(np.prod(grid))
        self.cluster, self.cluster_size = cluster, int(np.prod(cluster))
        self.steps = 0
        if self.blocks * self.per_block > THREADS:
            raise UnsupportedError(
                f"a launch of {self.blocks} blocks of {self.block_threads} threads is too large to "
                f"emulate: at most {THREADS} threads; use smaller sizes"
            )
        self.order = Order(self.blocks * self.per_block, self.per_block)
        count = len(program.operations)
        self.strong, self.volatile = np.zeros(count, bool), np.zeros(count, bool)
        self.collective = np.array([i.op[0] == "wgmma" for i in program.operations], bool)
        for m in program.accesses:
            self.strong[m.operation] |= m.strong
            self.volatile[m.operation] |= m.order == "volatile"

    # ---- batches

    def run(self, together: bool) -> None:
        """All blocks, a batch at a time, or all at once where they wait for each other."""
        size = self._shared_bytes()
        fit = max(1, min(_BATCH_THREADS // self.per_block, _BATCH_BYTES // max(size, 1)))
        batch = self.blocks if together else min(self.blocks, fit)
        if self.cluster_size > 1:  # a cluster's blocks are neighbours along x only
            row = self.cluster[0] if self.cluster[1:] == (1, 1) else self.blocks
            batch = min(max(batch // row, 1) * row, self.blocks)
        with np.errstate(all="ignore"):
            for first in range(0, self.blocks, batch):
                self._batch(first, min(batch, self.blocks - first), together)

    def _shared_bytes(self) -> int:
        p: Program = self.program
        if p.dynamic_at >= 0:
            return -(-(p.dynamic_at + self.dynamic + 256) // 256) * 256
        return p.shared_bytes

    def _batch(self, first: int, blocks: int, together: bool) -> None:
        self._prepare(first, blocks)
        registers = self._registers(first)
        groups: dict[int, Array] = {0: self.all_threads[self.live]}
        self._loop(registers, groups, together or blocks == self.blocks)

    def _prepare(self, first: int, blocks: int) -> None:
        p, count = self.program, blocks * self.per_block
        self.first, self.count = first * self.per_block, count
        self.all_threads = np.arange(count)
        self.live = self.all_threads % self.per_block < self.block_threads
        self.everything = Active(self.all_threads, None)
        size = self._shared_bytes()
        regions = [dataclasses.replace(region) for region in p.shared]
        if p.dynamic_at >= 0 and self.dynamic:
            regions.append(
                Region(p.dynamic_name, p.dynamic_at, p.dynamic_at + self.dynamic, complete=False)
            )
        self._fits(size * blocks * 40)
        self.shared = Space("shared", Layout(regions), size, blocks, p.units["shared"], races=True)
        self.shared_base = (self.all_threads // self.per_block) * np.int64(size)
        self._fits(p.local_bytes * count * 2)
        self.local = Space(
            "local", Layout([dataclasses.replace(r) for r in p.local]), p.local_bytes, count,
            p.units["local"], races=False,
        )  # fmt: skip
        self.local_base = self.all_threads * np.int64(p.local_bytes)
        self.order.begin(self.first, count)
        self.group = np.zeros(count, np.int64)
        self.copies = []
        self.objects = {}
        self.stored = False
        self.bulk = {}
        self.begin_clusters(first, blocks)
        self.begin_barriers(blocks)
        self.begin_cluster_barriers()
        self.begin_proxies(p.asynchronous)
        self.begin_wgmma()

    def _fits(self, nbytes: int) -> None:
        if nbytes > self.limits.nbytes:
            raise UnsupportedError(
                f"this launch needs {nbytes} bytes to emulate, more than the limit of "
                f"{self.limits.nbytes}; use smaller sizes"
            )

    def _registers(self, first: int) -> list[Any]:
        special = self._special(first)
        out = []
        for name, kind in zip(
            self.program.register_names, self.program.register_types, strict=True
        ):
            out.append(special[name] if name in special else np.dtype(kind).type(0))
        return out

    def _special(self, first: int) -> dict[str, Any]:
        """Values of %tid and its like: arrays over the threads, or scalars."""
        t = self.all_threads % self.per_block
        b = first + self.all_threads // self.per_block
        (bx, by, _), (gx, gy, _) = self.block, self.grid
        lane = t & 31
        one = np.uint32(1)
        bit = (one << lane.astype(np.uint32)).astype(np.uint32)
        out: dict[str, Any] = {
            "%tid.x": t % bx, "%tid.y": t // bx % by, "%tid.z": t // (bx * by),
            "%ctaid.x": b % gx, "%ctaid.y": b // gx % gy, "%ctaid.z": b // (gx * gy),
            "%laneid": lane, "%warpid": t // 32, "%lanemask_eq": bit, "%lanemask_lt": bit - one,
            "%lanemask_le": bit | (bit - one), "%lanemask_ge": ~(bit - one),
            "%lanemask_gt": ~(bit | (bit - one)),
        }  # fmt: skip
        for axis, n in zip("xyz", self.block, strict=True):
            out[f"%ntid.{axis}"] = n
        for axis, n in zip("xyz", self.grid, strict=True):
            out[f"%nctaid.{axis}"] = n
        out |= {"%nwarpid": self.per_block // 32, "%smid": 0, "%nsmid": 1, "%gridid": 0}
        out |= self.cluster_registers()
        out |= {"%dynamic_smem_size": self.dynamic, "%total_smem_size": self._shared_bytes()}
        return {
            name: value.astype(np.uint32) if np.ndim(value) else np.uint32(value)
            for name, value in out.items()
        }

    # ---- the scheduler

    def _loop(self, registers: list[Any], groups: dict[int, Array], alone: bool) -> None:
        """``groups``: block number -> threads. ``alone``: nobody else can come to help."""
        program = self.program
        waited: dict[int, int] = {}
        idle = 0
        self.groups, self.registers = groups, registers
        while True:
            if not groups:
                if not self.stuck():
                    return
                continue
            self.steps += 1
            if self.steps > self.limits.steps:
                raise UnsupportedError(
                    f"{program.name} has taken {self.limits.steps} steps without coming to an end; "
                    "use smaller sizes, or raise limits.steps"
                )
            number = self._next(groups, waited)
            threads = groups.pop(number)
            waited.pop(number, None)
            if len(threads) == self.count:
                active = self.everything
            else:
                active = Active(threads, threads)
            self.now_at = number
            result = program.blocks[number](self, registers, active)
            self._follow(result, active)
            idle = 0 if self.stored or result is None else idle + 1
            if self.stored:
                self.stored = False
            # Where other blocks could help, starting again with them costs less than to wait on.
            if idle > (self.limits.idle if alone else self.limits.idle // 10):
                self._spinning(alone, threads, number)
                return
            if self.order.now >= MAX_TIME - 2:
                raise UnsupportedError(f"{program.name} synchronises too often to be emulated")

    def _next(self, groups: dict[int, Array], waited: dict[int, int]) -> int:
        if len(groups) == 1:
            return next(iter(groups))
        ready = sorted(groups)
        if self.program.waits:
            waits = self.program.waits
            free = [n for n in ready if not waits[n] or self._whole(groups[n], waits[n])]
            ready = free or ready
        if self.random is not None:
            return int(self.random.choice(ready))
        if self.steps % _FAIR:
            return ready[0]
        for n in ready:
            waited.setdefault(n, self.steps)
        return min(ready, key=lambda n: waited[n])

    def _whole(self, threads: Array, of: int) -> bool:
        """Whether every warp (``of`` 32) or warpgroup (128) present has all its live threads."""
        every = self.all_threads
        numbers = every >> 5 if of == 32 else every // self.per_block * 8 + (
            every % self.per_block >> 7
        )  # fmt: skip
        here = np.bincount(numbers[threads], minlength=numbers[-1] + 1)
        alive = np.bincount(numbers, self.live, numbers[-1] + 1)
        return bool(((here == 0) | (here == alive)).all())

    def _follow(self, result: Any, active: Active) -> None:
        """Sort threads into the groups of the blocks that they go to."""
        if result is None:
            return
        if isinstance(result, int):
            self.send(result, active.threads)
        elif isinstance(result, tuple):
            condition, yes, no = result
            if np.ndim(condition) == 0:
                self.send(yes if condition else no, active.threads)
                return
            count = int(np.count_nonzero(condition))
            if count in (0, active.count):
                self.send(yes if count else no, active.threads)
                return
            self.send(yes, active.threads[condition])
            self.send(no, active.threads[~condition])
        else:
            for target in np.unique(result).tolist():
                self.send(target, active.threads[result == target])

    def send(self, number: int, threads: Array) -> None:
        if number >= len(self.program.blocks):
            self.live[threads] = False
            self.stored = True
            self.ended(threads)
            return
        waiting = self.groups.get(number)
        if waiting is None:
            self.groups[number] = threads
        else:
            self.groups[number] = np.sort(np.concatenate((waiting, threads)))

    def _spinning(self, alone: bool, threads: Array, number: int) -> None:
        """Nothing has changed for long: other blocks may be what is waited for."""
        if not alone:
            raise Restart(together=True)
        for at, who in {number: threads, **self.groups}.items():
            operation = self.program.block_operations[at]
            place = self.program.operations[operation].location
            self.report.add(
                "deadlock", operation,
                f"threads run without end and nothing changes any more; among them "
                f"{self.who(self.first + who[0])}",
                subject=" ".join(map(str, place.chain())) if place else "",
            )  # fmt: skip
        self.groups.clear()
        self.abandon()

    # ---- what blocks call

    def put(self, registers: list[Any], number: int, value: Any, index: Array) -> None:
        """A register of the threads ``index``; the array may be shared, so it is copied."""
        old = registers[number]
        if old.ndim == 0:
            old = np.full(self.count, old)
        else:
            old = old.copy()
        old[index] = value
        registers[number] = old

    def index_overflow(self, operation: int, exact: Any, A: Active, guard: Any) -> None:
        """Report index products that do not fit 32 bits."""
        if exact.max() < 1 << 31 and exact.min() >= -(1 << 31):
            return
        bad = A.spread((exact >= 1 << 31) | (exact < -(1 << 31)))
        bad = bad if guard is None else bad & guard
        if bad.any():
            n = int(np.argmax(bad))
            self.report.add(
                "index overflow", operation,
                f"the index {int(A.spread(exact)[n])} does not fit 32 bits and wraps; use "
                f"64 bits; {self.who(self.first + A.threads[n])}",
                count=int(bad.sum()),
            )  # fmt: skip

    def clock(self, dtype: str) -> Any:
        return np.dtype(dtype).type(self.steps)

    def print_formatted(self, text: Any, arguments: Any, A: Active, guard: Any) -> None:
        from kernelproof.emulate.printing import formatted

        active = A.at(A.positions(guard))
        text, arguments = A.spread(text), A.spread(arguments)
        for n in range(active.count):
            self.report.output.append(formatted(self, int(text[n]), int(arguments[n]), active, n))

    def assertion(
        self, operation: int, text: Any, file: Any, line: Any, A: Active, guard: Any
    ) -> None:
        from kernelproof.emulate.printing import string

        active = A.at(A.positions(guard))
        if active.count:
            words = string(self, int(A.spread(text)[0]))
            self.report.add(
                "assertion", operation,
                f"`{words}` does not hold; {self.who(self.first + active.threads[0])}",
                count=active.count,
            )  # fmt: skip

    def byte_at(self, address: int, thread: int) -> int:
        """A byte by its generic address, unchecked."""
        if address >= WINDOWS["local"]:
            return int(self.local.data[address - WINDOWS["local"] + self.local_base[thread]])
        if address >= WINDOWS["shared"]:
            return int(self.shared.data[address - WINDOWS["shared"] + self.shared_base[thread]])
        return int(self.globals.data[address - GLOBAL_BASE])
