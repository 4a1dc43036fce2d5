"""Loads, stores, atomics and asynchronous copies on the machine's state spaces."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose, scatter
from kernelproof.emulate.atomics import apply_atomic
from kernelproof.emulate.checks import Restart
from kernelproof.emulate.clusters import ClusterMemory
from kernelproof.emulate.memory import space as shadow
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import GLOBAL_BASE, WINDOWS
from kernelproof.emulate.memory.space import Space
from kernelproof.emulate.proxies import ProxyUnit
from kernelproof.emulate.traffic import Traffic

Array = Any


@functools.cache
def _within(m: Access, space: str) -> Access:
    return dataclasses.replace(m, space=space)


class MemoryUnit(ProxyUnit, ClusterMemory):
    """``shared_base``, ``local_base``: where each thread's copy starts, in bytes."""

    globals: Space
    shared: Space
    local: Space
    shared_base: Array
    local_base: Array
    parameters: Array
    stored: bool  # something was stored since the scheduler last looked
    traffic: Traffic | None = None  # counts of what warps move, where asked for

    # ---- addresses

    def parameter(self, dtype: str, at: Any) -> Any:
        """Kernel parameters; the same for all threads, unless indexed."""
        kind = np.dtype(dtype)
        if np.ndim(at) == 0:
            return self.parameters[at : at + kind.itemsize].view(kind)[0]
        bytes_ = self.parameters[np.asarray(at)[:, None] + np.arange(kind.itemsize)]
        return np.ascontiguousarray(bytes_).view(kind).reshape(-1)

    def in_space(self, space: str, address: Any) -> Any:
        address = address.astype(np.int64)
        local, shared = address >= WINDOWS["local"], address >= WINDOWS["shared"]
        return {"local": local, "shared": shared & ~local}.get(space, ~shared)

    def _locate(self, m: Access, address: Array, active: Active) -> tuple[Space, Array, Array]:
        """The space, addresses within one copy of it, and indices into its bytes."""
        if m.space == "shared":
            index, inside = self.shared_place(m, address, active.threads)
            return self.shared, inside, index
        if m.space == "local":
            return self.local, address, address + self.local_base[active.threads]
        address = address - GLOBAL_BASE
        return self.globals, address, address

    def _split(self, address: Array) -> list[tuple[str, Array, Array | None]]:
        """Generic addresses by space, with positions."""
        parts: list[tuple[str, Array, Array | None]] = []
        for space in ("global", "shared", "local"):
            mine = self.in_space(space, address)
            if mine.all():
                return [(space, address - WINDOWS[space], None)]
            if mine.any():
                at = np.nonzero(mine)[0]
                parts.append((space, address[at] - WINDOWS[space], at))
        return parts

    # ---- loads

    def load(self, m: Access, address: Any, A: Active, guard: Any) -> tuple[Any, ...]:
        positions = A.positions(guard)
        active = A.at(positions)
        if active.count == 0:
            return tuple(np.zeros(A.count, m.dtype) for _ in range(m.count))
        address = active.spread(choose(address, positions))
        parts = self._split(address) if m.space == "generic" else [(m.space, address, None)]
        out: list[Any] = []
        for space, where, at in parts:
            values = self._load(_within(m, space), where, active.at(at))
            if at is None:
                out = values
            else:
                out = out or [np.zeros(active.count, m.dtype) for _ in values]
                for whole, part in zip(out, values, strict=True):
                    whole[at] = part
        return tuple(scatter(value, positions, A.count) for value in out)

    def _load(self, m: Access, address: Array, active: Active) -> list[Array]:
        space, address, index = self._locate(m, address, active)
        keep = self.usable(m, space, address, active)
        if keep is not None:
            if len(keep) == 0:
                return [_fill(active.count, m.dtype) for _ in range(m.count)]
            part = self._checked_load(m, space, address[keep], index[keep], active.at(keep))
            out = []
            for values in part:
                whole = _fill(active.count, m.dtype)
                whole[keep] = values
                out.append(whole)
            return out
        return self._checked_load(m, space, address, index, active)

    def _checked_load(
        self, m: Access, space: Space, address: Array, index: Array, active: Active
    ) -> list[Array]:
        self.reads(m, space, address, index, active)
        size = np.dtype(m.dtype).itemsize
        element = index >> (size.bit_length() - 1)
        view = space.view(m.dtype)
        values = [view[element]]
        values += [view[element + n] for n in range(1, m.count)]
        if m.order != "weak" and m.order != "release":
            self.order.acquire(active.threads, index, space.name)
        return values

    def reads(
        self, m: Access, space: Space, address: Array, index: Array, active: Active, time: int = 0
    ) -> None:
        """Checks and records of reads of ``m.width`` bytes at every index; ``time`` other than now
        where they go on."""
        if self.traffic is not None:
            self.traffic.add(m, space.name, address, active.threads)
        if space.name != "global":
            units = space.units(index, m.width)
            self.initialised(m, space, units, address, active)
            if space.races:
                if self.waiting:
                    self.last_effect[active.threads] = m.operation
                self.conflicts(m, space, units, address, active, space.writes[units], "write")
                self._note(m, space, units, active, time)
            return
        for region, at in self.regions(space, address):
            if region.complete and not region.written and not region.tracked:
                region.loaded = True
                if m.read_only:
                    region.read_only_line = m.operation
                continue
            part, where = active.at(at), choose(address, at)
            units = space.units(choose(index, at), m.width)
            if not region.complete:
                self.initialised(m, space, units, where, part)
            if region.written:
                region.tracked = region.tracked or not region.loaded
                self.conflicts(m, space, units, where, part, space.writes[units], "write")
            region.loaded = True
            if m.read_only:
                region.read_only_line = m.operation
            if region.tracked:
                self._note(m, space, units, part, time)

    def _note(self, m: Access, space: Space, units: Array, active: Active, time: int) -> None:
        threads = (self.first + active.threads).astype(np.int64)
        space.note_reads(units, shadow.record(time or self.order.now, m.operation, threads))

    # ---- stores

    def store(
        self, m: Access, address: Any, values: tuple[Any, ...], A: Active, guard: Any
    ) -> None:
        positions = A.positions(guard)
        active = A.at(positions)
        if active.count == 0:
            return
        address = active.spread(choose(address, positions))
        data = [active.spread(choose(value, positions)) for value in values]
        parts = self._split(address) if m.space == "generic" else [(m.space, address, None)]
        for name, where, at in parts:
            part = active.at(at)
            mine = [choose(value, at) for value in data]
            space, where, index = self._locate(_within(m, name), where, part)
            keep = self.usable(m, space, where, part)
            if keep is not None:
                part, where, index = part.at(keep), where[keep], index[keep]
                mine = [value[keep] for value in mine]
            if part.count:
                self._checked_store(_within(m, name), space, where, index, mine, part)

    def _checked_store(
        self, m: Access, space: Space, address: Array, index: Array, values: list[Array],
        active: Active,
    ) -> None:  # fmt: skip
        size = np.dtype(m.dtype).itemsize
        element = index >> (size.bit_length() - 1)
        view = space.view(m.dtype)

        stored: list[bool] = []

        def same() -> Array:
            # After the store: what other threads of this very instruction have put there. They may
            # hold one sum, rounded in another order.
            agree = _close if stored else np.equal
            equal = np.ones(active.count, bool)
            for n, value in enumerate(values):
                equal &= agree(_bits(view[element + n]), _bits(value))
            return equal

        def put() -> None:
            stored.append(True)
            for n, value in enumerate(values):
                view[element + n] = value

        self.writes(m, space, address, index, active, put, same)
        if m.order in ("release", "acq_rel") or (m.strong and self.order.fenced.any()):
            self.order.release(active.threads, index, space.name, m.order == "release")

    def writes(
        self, m: Access, space: Space, address: Array, index: Array, active: Active,
        put: Any, same: Any,
    ) -> None:  # fmt: skip
        """Checks, the store itself (``put``), and its records."""
        if self.traffic is not None:
            self.traffic.add(m, space.name, address, active.threads)
        # An atomic that changes nothing, as in a loop that waits for a lock, is no progress.
        self.stored = self.stored or m.kind != "atomic"
        if self.waiting:
            self.last_effect[active.threads] = m.operation
        if space.name != "global":
            units = space.units(index, m.width)
            self.initialised(m, space, units, address, active)
            if space.races:
                self._race_checks(m, space, units, address, active, same)
            put()
            if space.races:
                self._keep_record(m, space, units, address, active, same)
                if m.kind != "copy":
                    self.soil(units)
            # Red zones take the bytes, but never count as memory.
            space.state[units] = np.where(space.state[units] == shadow.OUTSIDE, 0, shadow.SET)
            return
        parts = []
        for region, at in self.regions(space, address):
            if region.loaded and not region.tracked:
                raise Restart(track=region.name)
            region.written = True
            if region.constant or region.read_only_line >= 0:
                self._read_only(m, region.name, region.read_only_line, active)
            part, where = active.at(at), choose(address, at)
            units = space.units(choose(index, at), m.width)
            chosen = same if at is None else (lambda at=at: same()[at])
            self._race_checks(m, space, units, where, part, chosen)
            parts.append((region, units, where, part, chosen))
        put()
        for region, units, where, part, chosen in parts:
            self._keep_record(m, space, units, where, part, chosen)
            if not region.complete:
                space.state[units] = shadow.SET

    def _read_only(self, m: Access, name: str, line: int, active: Active) -> None:
        text = f"write to {name}, which "
        text += (
            f"is read through the read-only path at {self.report.line(line)}"
            if line >= 0
            else "is constant"
        )
        who = self.who(self.first + active.threads[0])
        self.report.add(
            "written through read-only path", m.operation, f"{text}; {who}", other=line,
            subject=name, count=active.count,
        )  # fmt: skip

    def _race_checks(
        self, m: Access, space: Space, units: Array, address: Array, active: Active, same: Any
    ) -> None:
        self.conflicts(m, space, units, address, active, space.writes[units], "write", same)
        for reads in (space.high, space.low, space.other):
            self.conflicts(m, space, units, address, active, reads[units], "read")

    def _keep_record(
        self, m: Access, space: Space, units: Array, address: Array, active: Active, same: Any
    ) -> None:
        threads = (self.first + active.threads).astype(np.int64)
        time = shadow.IN_FLIGHT if m.kind == "copy" else self.order.now
        records = shadow.record(time, m.operation, threads)
        space.writes[units] = records[:, None]
        if m.kind != "atomic":
            self.collisions(m, space, units, address, active, records, same)

    # ---- atomics

    def atomic(self, m: Access, address: Any, b: Any, c: Any, A: Active, guard: Any) -> Any:
        positions = A.positions(guard)
        active = A.at(positions)
        dtype = m.dtype
        if active.count == 0:
            return np.zeros(A.count, dtype)
        address = active.spread(choose(address, positions))
        b = active.spread(choose(b, positions))
        c = active.spread(choose(c, positions)) if c is not None else None
        old = np.zeros(active.count, dtype)
        parts = self._split(address) if m.space == "generic" else [(m.space, address, None)]
        for name, where, at in parts:
            part, mine = active.at(at), choose(b, at)
            third = choose(c, at) if c is not None else None
            space, where, index = self._locate(_within(m, name), where, part)
            keep = self.usable(m, space, where, part)
            if keep is not None:
                part, where, index, mine = part.at(keep), where[keep], index[keep], mine[keep]
                third = third[keep] if third is not None else None
                at = keep if at is None else at[keep]
            if part.count:
                values = self._checked_atomic(
                    _within(m, name), space, where, index, mine, third, part
                )
                old[slice(None) if at is None else at] = values
        return scatter(old, positions, A.count)

    def _checked_atomic(
        self, m: Access, space: Space, address: Array, index: Array, b: Array, c: Array | None,
        active: Active,
    ) -> Array:  # fmt: skip
        result: list[Array] = []

        def put() -> None:
            element = index >> (np.dtype(m.dtype).itemsize.bit_length() - 1)
            before = _bits(space.view(m.dtype)[element])
            result.append(apply_atomic(m, space, index, b, c))
            changed = before != _bits(space.view(m.dtype)[element])
            self.stored = self.stored or bool(changed.any())

        if space.name == "global":
            for region, at in self.regions(space, address):
                if not region.complete:
                    units = space.units(choose(index, at), m.width)
                    self.initialised(m, space, units, choose(address, at), active.at(at))
        self.writes(m, space, address, index, active, put, None)
        full = m.order in ("release", "acq_rel")
        self.order.exchange(active.threads, index, space.name, full)
        return result[0] if result else np.zeros(active.count, m.dtype)

    def fence(self, operation: int, A: Active, guard: Any) -> None:
        active = A.at(A.positions(guard))
        if active.count:
            self.order.fence(active.threads)


def _fill(count: int, dtype: str) -> Array:
    """What reads outside of memory give: all bits set."""
    return np.full(count * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)


def _bits(x: Array) -> Array:
    x = np.ascontiguousarray(x)
    return x.view(f"u{x.dtype.itemsize}") if x.dtype.kind == "f" else x


def _close(a: Array, b: Array) -> Array:
    """Equal, or 32-bit patterns of normal floats that are at most four units apart."""
    if a.dtype.itemsize != 4:
        return a == b
    x, y = a.astype(np.int64) & 0x7FFFFFFF, b.astype(np.int64) & 0x7FFFFFFF
    normal = (x >= 0x00800000) & (y >= 0x00800000) & (a >> 31 == b >> 31)
    return (a == b) | (normal & (np.abs(x - y) <= 4))
