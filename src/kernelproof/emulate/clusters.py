"""Clusters (ISA 1.3, 9.7.13.4): which blocks belong together, how one reaches the shared memory of
another, their barrier, and the end of a block whose shared memory others still use.

An address of the shared memory of a cluster is that of the block's own, or has the rank of the
block plus one in its bits from 24 on; `mapa` makes these.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active
from kernelproof.emulate.barriers import BarrierUnit
from kernelproof.emulate.checks import Checks
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.space import Space
from kernelproof.errors import UnsupportedError

Array = Any
_RANK = 24  # the bit at which ranks begin
_OFFSET = (1 << _RANK) - 1


class ClusterMemory(Checks):
    """``cluster``: blocks along each axis, None without clusters; ``peers``: per block of the batch
    and rank, the block of that rank in its cluster."""

    cluster: tuple[int, int, int]
    cluster_size: int
    peers: Array
    live: Array
    shared: Space
    shared_base: Array

    def begin_clusters(self, first: int, blocks: int) -> None:
        number = first + np.arange(blocks)
        coordinates, left = [], number
        for n in self.grid:
            coordinates.append(left % n)
            left = left // n
        self.cluster_at, self.cluster_rank, step, wide = number * 0, number * 0, 1, 1
        for at, n, of in zip(coordinates, self.grid, self.cluster, strict=True):
            self.cluster_rank = self.cluster_rank + at % of * step
            self.cluster_at = self.cluster_at + at // of * wide
            step, wide = step * of, wide * (n // of)
        _, self.cluster_number = np.unique(self.cluster_at, return_inverse=True)
        members = np.zeros((self.cluster_number.max() + 1, self.cluster_size), np.int64)
        members[self.cluster_number, self.cluster_rank] = np.arange(blocks)
        self.peers = members[self.cluster_number]
        self.cluster_coordinates = coordinates

    def cluster_registers(self) -> dict[str, Any]:
        """%cluster_ctarank and its like, per thread."""
        blocks = np.arange(self.block_count).repeat(self.per_block)
        out: dict[str, Any] = {
            "%cluster_ctarank": self.cluster_rank[blocks], "%cluster_nctarank": self.cluster_size,
        }  # fmt: skip
        for axis, at, n, of in zip(
            "xyz", self.cluster_coordinates, self.grid, self.cluster, strict=True
        ):
            out[f"%cluster_ctaid.{axis}"] = (at % of)[blocks]
            out[f"%cluster_nctaid.{axis}"] = of
            out[f"%clusterid.{axis}"] = (at // of)[blocks]
            out[f"%nclusterid.{axis}"] = n // of
        return out

    block_count: int

    def map_shared(self, address: Any, rank: Any, A: Active) -> Array:
        """mapa, on addresses of shared memory."""
        ranks = A.spread(rank).astype(np.int64)
        inside = A.spread(address).astype(np.int64) & _OFFSET
        return (ranks + 1) << _RANK | inside

    def rank_of(self, address: Any, A: Active) -> Array:
        """getctarank"""
        far = A.spread(address).astype(np.int64) >> _RANK & 255
        return np.where(far > 0, far - 1, self.cluster_rank[A.threads // self.per_block])

    def shared_place(self, m: Access, address: Array, threads: Array) -> tuple[Array, Array]:
        """Indices into the shared memory of the batch, and addresses within a block's own."""
        far = address >> _RANK
        if not far.any():
            return address + self.shared_base[threads], address
        known = (far > 0) & (far <= self.cluster_size)
        own = threads // self.per_block
        block = np.where(known, self.peers[own, np.where(known, far - 1, 0)], own)
        inside = np.where(known, address & _OFFSET, address)
        alive = self.live.reshape(self.block_count, self.per_block).any(axis=1)
        gone = known & ~alive[block]
        if gone.any():
            n = int(np.argmax(gone))
            self._gone(m.operation, int(block[n]), int(threads[n]))
        return inside + block * np.int64(self.shared.size), inside

    def _gone(self, operation: int, block: int, thread: int) -> None:
        owner = self.who(self.first + block * self.per_block).split(" thread")[0]
        self.report.add(
            "ended block", operation,
            f"{self.report.opcode(operation)} by {self.who(self.first + thread)} goes to the "
            f"shared memory of {owner}, which may have ended; it must wait at a cluster barrier",
        )  # fmt: skip

    def used_after_end(self, block: int, seen: Array) -> None:
        """Report accesses by other blocks that nothing orders before the end of ``block``;
        ``seen``: per thread of the launch, until when its accesses are."""
        space = self.shared
        first = block * space.size >> space.shift
        last = (block + 1) * space.size >> space.shift
        for records in (space.writes, space.high, space.low, space.other):
            found = np.unique(records[first:last])
            found = found[found != 0]
            threads = shadow.thread_of(found)
            own = self.first // self.per_block + block
            foreign = self.order.block_of(threads) != own
            late = foreign & (shadow.time_of(found) >= seen[threads])
            for record in found[late].tolist()[:1]:
                thread = int(shadow.thread_of(np.int64(record))) - self.first
                self._gone(int(shadow.operation_of(np.int64(record))), block, thread)


@dataclasses.dataclass
class Waiting:
    """Threads at a barrier.cluster.wait."""

    operation: int
    threads: Array
    after: int
    acquires: bool


class ClusterUnit(BarrierUnit, ClusterMemory):
    """The barrier of a cluster: arriving and waiting are two instructions."""

    def begin_cluster_barriers(self) -> None:
        clusters = int(self.cluster_number.max()) + 1
        self.came = np.zeros(self.count, bool)  # has arrived in the open phase
        self.came_at = np.zeros(self.order.slots, np.int64)
        self.owes = np.zeros(self.count, bool)  # has arrived and not waited
        self.to_pass = np.full(self.count, -1)  # the phase that it waits for
        self.cluster_phase = np.zeros(clusters, np.int64)
        self.cluster_given: dict[int, Array] = {}
        self.cluster_known: dict[int, Array] = {}
        self.passed: dict[int, Array] = {}  # per cluster, when its threads last arrived
        self.cluster_waits: list[Waiting] = []

    def cluster_of(self, threads: Array) -> Array:
        return self.cluster_number[threads // self.per_block]

    def cluster_arrive(self, operation: int, releases: bool, A: Active, guard: Any) -> None:
        """barrier.cluster.arrive; relaxed, it hands on what came before a fence."""
        active = A.at(A.positions(guard))
        if active.count == 0:
            return
        threads, clusters = active.threads, self.cluster_of(active.threads)
        if self.owes[threads].any():
            thread = threads[int(np.argmax(self.owes[threads]))]
            self.report.add(
                "divergent barrier", operation,
                "arrives at the barrier of the cluster a second time with no "
                f"barrier.cluster.wait in between; {self.who(self.first + thread)}",
            )  # fmt: skip
        now = self.order.now + 1
        for cluster in np.unique(clusters).tolist():
            mine = threads[clusters == cluster]
            own: Any = now if releases else self.order.fenced[mine]
            fenced = mine if releases else mine[own > 0]
            clock = None
            if len(fenced):
                own = own if releases else own[own > 0]
                clock = self.order.together(fenced, own)
            if clock is not None:
                given = self.cluster_given.get(cluster)
                self.cluster_given[cluster] = clock if given is None else np.maximum(given, clock)
        self.came[threads] = self.owes[threads] = True
        self.came_at[self.first + threads] = now
        self.to_pass[threads] = self.cluster_phase[clusters]
        self.order.tick()
        self.stored = True
        self._clusters_on()

    def cluster_wait(self, operation: int, acquires: bool, A: Active, after: int) -> None:
        """barrier.cluster.wait: threads wait here."""
        if not self.owes[A.threads].all():
            thread = A.threads[int(np.argmin(self.owes[A.threads]))]
            self.report.add(
                "divergent barrier", operation,
                "waits at the barrier of the cluster without having arrived; "
                f"{self.who(self.first + thread)}",
            )  # fmt: skip
        self.owes[A.threads] = False
        self.cluster_waits.append(Waiting(operation, A.threads, after, acquires))
        self._clusters_on()

    def _clusters_on(self) -> None:
        """Complete the phases in which all have come that live, and let those that waited go."""
        clusters = self.cluster_of(np.arange(self.count))
        missing = np.bincount(clusters, self.live & ~self.came, len(self.cluster_phase))
        came = np.bincount(clusters, self.came, len(self.cluster_phase))
        for cluster in np.nonzero((missing == 0) & (came > 0))[0].tolist():
            self.cluster_phase[cluster] += 1
            self.came[clusters == cluster] = False
            self.passed[cluster] = self.came_at.copy()
            given = self.cluster_given.pop(cluster, None)
            if given is not None:
                self.cluster_known[cluster] = given
        waits, self.cluster_waits = self.cluster_waits, []
        for wait in waits:
            goes = self.to_pass[wait.threads] < self.cluster_phase[self.cluster_of(wait.threads)]
            if not goes.all():
                rest = dataclasses.replace(wait, threads=wait.threads[~goes])
                self.cluster_waits.append(rest)
            if goes.any():
                self._pass(wait, wait.threads[goes])

    def _pass(self, wait: Waiting, threads: Array) -> None:
        clusters = self.cluster_of(threads)
        for cluster in np.unique(clusters).tolist():
            known = self.cluster_known.get(cluster)
            if wait.acquires and known is not None:
                self.order.learn_together(threads[clusters == cluster], known)
        self.order.tick()
        self.stored = True
        self.send(wait.after, threads)

    # ---- ends

    def ended(self, threads: Array) -> None:
        super().ended(threads)
        if self.cluster_waits or self.came.any():
            self._clusters_on()
        blocks = np.unique(threads // self.per_block)
        alive = self.live.reshape(self.block_count, self.per_block).any(axis=1)
        for block in blocks[~alive[blocks]].tolist():
            own = block * self.per_block + np.arange(self.per_block)
            self.left_reading(own)
            if self.cluster_size > 1:
                seen = self.order.together(own, self.order.now + 1)
                passed = self.passed.get(int(self.cluster_number[block]))
                self.used_after_end(block, seen if passed is None else np.maximum(seen, passed))

    def left_reading(self, threads: Array) -> None:
        """Copies that a block leaves under way when it ends."""

    def stuck(self) -> bool:
        waits, self.cluster_waits = self.cluster_waits, []
        for wait in waits[:1]:
            self.report.add(
                "deadlock", wait.operation,
                "threads wait at the barrier of the cluster for others that never arrive; "
                f"{self.who(self.first + wait.threads[0])}",
                count=sum(len(w.threads) for w in waits),
            )  # fmt: skip
        return super().stuck()

    def abandon(self) -> None:
        super().abandon()
        self.cluster_waits.clear()


def clusters_of(
    cluster: tuple[int, int, int] | None, grid: tuple[int, int, int], declared: Any, name: str
) -> tuple[int, int, int]:
    """Blocks per cluster along each axis; ``declared``: by __cluster_dims__, else None.

    Raises:
        ValueError: the grid is no multiple of it, or the launch says other than the kernel.
        UnsupportedError: more than the 16 blocks that a GPU can take.
    """
    if cluster is not None and declared is not None and tuple(cluster) != tuple(declared):
        raise ValueError(f"{name} declares clusters of {declared}, the launch asks for {cluster}")
    sizes = cluster or declared or (1, 1, 1)
    if any(g % c for g, c in zip(grid, sizes, strict=True)):
        raise ValueError(f"grid {grid} of {name} is not a multiple of the cluster {tuple(sizes)}")
    if int(np.prod(sizes)) > 16:
        raise UnsupportedError(
            f"{name}: a cluster of {tuple(sizes)} blocks; a GPU takes 8, and 16 by opting in"
        )
    return sizes[0], sizes[1], sizes[2]
