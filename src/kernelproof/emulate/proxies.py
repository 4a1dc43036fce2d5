"""Generic and async proxy (ISA 8.4): what threads store to shared memory by ordinary instructions
is seen by wgmma, bulk copies and tensor copies only after a `fence.proxy.async`.

The fence may stand anywhere between the store and the asynchronous access: in the thread that
stored, or in one that has synchronised with it since. The other way round none is needed: waiting
for a copy or for a wgmma does it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelproof.emulate.active import Active
from kernelproof.emulate.checks import Checks
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.space import Space

Array = Any


class ProxyUnit(Checks):
    """``dirty``: per unit of shared memory, whether its last store was ordinary and has not been
    fenced; None where the kernel uses the async proxy for nothing."""

    shared: Space
    dirty: Array | None
    soiled: list[Array]  # units that were made dirty, and perhaps cleaned since

    def begin_proxies(self, asynchronous: bool) -> None:
        self.dirty = np.zeros(len(self.shared.state), bool) if asynchronous else None
        self.soiled = []

    def soil(self, units: Array) -> None:
        """Ordinary stores to units of shared memory."""
        if self.dirty is not None:
            self.dirty[units] = True
            self.soiled.append(units.reshape(-1))

    def fence_proxy(self, A: Active, guard: Any) -> None:
        """fence.proxy.async: covers what its threads stored and what they have learnt of."""
        active = A.at(A.positions(guard))
        if self.dirty is None or not self.soiled or active.count == 0:
            return
        units = np.unique(np.concatenate(self.soiled))
        units = units[self.dirty[units]]
        records = self.shared.writes[units]
        writers, times = shadow.thread_of(records), shadow.time_of(records)
        fencing = np.zeros(self.order.slots, bool)
        fencing[self.first + active.threads] = True
        covered = fencing[writers]
        for thread in self._representatives(active.threads):
            left = np.nonzero(~covered)[0]
            if not len(left):
                break
            same = np.full(len(left), thread)
            covered[left] = self.order.ordered(writers[left], times[left], same)
        self.dirty[units[covered]] = False
        self.soiled = [units[~covered]]

    def _representatives(self, threads: Array) -> list[int]:
        """One of those that know the same."""
        known = np.stack((self.order.row[threads], self.order.block[threads], threads >> 5))
        _, first = np.unique(known, axis=1, return_index=True)
        return [int(t) for t in threads[first]]

    def proxy_seen(
        self, m: Access, space: Space, units: Array, address: Array, active: Active
    ) -> None:
        """Report an asynchronous access to units that are dirty."""
        if self.dirty is None or not (found := self.dirty[units]).any():
            return
        rows, columns = np.nonzero(found)
        records = space.writes[units[rows, columns]]
        operations = shadow.operation_of(records)
        for operation in np.unique(operations).tolist():
            n = int(np.argmax(operations == operation))
            at = int(address[rows[n]]) + int(columns[n]) * space.unit
            self.report.add(
                "missing proxy fence", m.operation,
                f"{self.report.opcode(m.operation)} goes to {self._name(space, at)} by the async "
                f"proxy; it was stored by {self.who(shadow.thread_of(records[n]))} at "
                f"{self.report.line(operation)}, with no fence.proxy.async in between",
                other=operation, subject=self._subject(space, at),
                count=int((operations == operation).sum()),
            )  # fmt: skip
