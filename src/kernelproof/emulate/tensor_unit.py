"""Tensor copies (ISA 9.7.9.27): boxes of a tensor between global and shared memory, by a map."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from kernelproof.emulate.active import Active
from kernelproof.emulate.bulk_unit import BulkUnit
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.layout import GLOBAL_BASE
from kernelproof.emulate.tensor_maps import BYTES, Decoded, decode
from kernelproof.errors import UnsupportedError

Array = Any
# What an H200 puts outside of a tensor of floats for OOB_FILL_NAN, over and over.
_NAN = np.frombuffer(b"\xf7\x7f", np.uint8)


@functools.cache
def _wide(m: Access, width: int) -> Access:
    return dataclasses.replace(m, count=width)


@functools.lru_cache(maxsize=256)
def _decoded(data: bytes) -> Decoded | None:
    return decode(data)


def swizzled(address: Array, span: Any, base: Any = 0) -> Array:
    """Addresses after the permutation of 16-byte pieces within ``span`` bytes (0 or 16: none):
    bits 4 and up are xored with those from 7 on, of which ``base`` is subtracted first."""
    pieces = np.maximum(np.asarray(span) // 16, 1)
    return address ^ ((((address >> 7) - base) & (pieces - 1)) << 4)


@dataclasses.dataclass
class Box:
    """One box: addresses of its rows in global memory, those that are inside, and the part
    ``low`` to ``high`` of each row's elements that is."""

    rows: Array
    inside: Array
    low: int
    high: int
    row_bytes: int

    @property
    def nbytes(self) -> int:
        return len(self.rows) * self.row_bytes


class TensorUnit(BulkUnit):
    def tensor_load(
        self, to: Access, source: Access, where: Any, at: Any, coordinates: tuple[Any, ...],
        barrier: Any, mask: Any, A: Active, guard: Any,
    ) -> None:  # fmt: skip
        """A box of global memory to shared memory, whose bytes an mbarrier counts."""
        for thread, (start, map_at, word, blocks, *corner) in self.one_by_one(
            A, guard, where, at, barrier, mask, *coordinates
        ):
            map_ = self._map(to.operation, map_at, thread, len(corner))
            if map_ is None or not self._aligned_box(to, map_, start, corner[0], thread):
                continue
            box = _box(map_, corner)
            data = self._gather(source, thread, map_, box).reshape(-1, 16)
            pieces = _image(map_, box)
            for into, object_ in self.targets(start, word, blocks):
                item = self.one_object(to, object_, thread)
                if item is not None:
                    rank, inside = into >> 24 << 24, into & ((1 << 24) - 1)
                    place = rank + swizzled(inside + pieces, map_.swizzle)
                    copies = self.land_later(to, thread, item, place, data)
                    self.complete(item, thread, copies, box.nbytes)
        self.order.tick()
        self.stored = True

    def tensor_store(
        self, to: Access, source: Access, where: Any, at: Any, coordinates: tuple[Any, ...],
        A: Active, guard: Any,
    ) -> None:  # fmt: skip
        """A box of shared memory to global memory, in the thread's open group."""
        for thread, (start, map_at, *corner) in self.one_by_one(A, guard, where, at, *coordinates):
            map_ = self._map(to.operation, map_at, thread, len(corner))
            if map_ is None or not self._aligned_box(source, map_, start, corner[0], thread):
                continue
            if min(corner) < 0:
                self.report.add(
                    "out of bounds", to.operation,
                    f"a tensor store that begins at {tuple(corner)}: an H200 stops at negative "
                    f"coordinates with an illegal instruction; {self.who(self.first + thread)}",
                )  # fmt: skip
                continue
            box = _box(map_, corner)
            place = swizzled(start + _image(map_, box), map_.swizzle)
            data, units = self.read_async(source, thread, place)
            rows = data.reshape(len(box.rows), box.row_bytes)[box.inside]
            high = box.high * map_.element
            width, address = _pieces(box.rows[box.inside], high)
            self.write_out(
                _wide(to, width), thread, address, rows[:, :high].reshape(-1, width), units
            )
            self._padding(to, thread, box, rows, high, units[:0])
        self.order.tick()
        self.stored = True

    # ---- inside

    def _padding(
        self, to: Access, thread: int, box: Box, rows: Array, high: int, units: Array
    ) -> None:
        """An H200 stores whole pieces of 16 bytes, so also what follows a row up to the next
        multiple of these; where no buffer lies there, nobody sees it."""
        end = min(-(-high // 16) * 16, box.row_bytes)
        starts = box.rows[box.inside] + high
        inside = [self.globals.layout.at(int(at) - GLOBAL_BASE) is not None for at in starts]
        if high < end and any(inside):
            width, address = _pieces(starts[inside], end - high)
            tail = rows[inside, high:end].reshape(-1, width)
            self.write_out(_wide(to, width), thread, address, tail, units)

    def _map(self, operation: int, address: int, thread: int, axes: int) -> Decoded | None:
        at = address - GLOBAL_BASE
        data = self.globals.data[at : at + BYTES].tobytes() if at >= 0 else b""
        found = _decoded(data) if len(data) == BYTES else None
        if found is None:
            raise UnsupportedError(
                f"{self.report.line(operation)}: no tensor map at the address of this copy; "
                "emulated are maps of cuTensorMapEncodeTiled that are passed as "
                "const __grid_constant__ CUtensorMap, or copied to __constant__ or global memory"
            )
        if len(found.sizes) == axes:
            return found
        self.report.add(
            "out of bounds", operation,
            f"{axes} coordinates for a tensor map of {len(found.sizes)} axes; "
            f"{self.who(self.first + thread)}",
        )  # fmt: skip
        return None

    def _aligned_box(self, m: Access, map_: Decoded, start: int, corner: int, thread: int) -> bool:
        """Shared memory at multiples of 128 bytes; along the contiguous axis at multiples of 16,
        without which an H200 stops with an illegal instruction."""
        words = ""
        if start % 128:
            words = f"{start & ((1 << 24) - 1):#x} of shared memory, which is no multiple of 128"
        elif corner * map_.element % 16:
            words = (
                f"{corner} along the first axis, {corner * map_.element} bytes, which are no "
                "multiple of 16"
            )
        if words:
            self.report.add(
                "misaligned", m.operation,
                f"a tensor copy at {words}; {self.who(self.first + thread)}",
            )  # fmt: skip
        return not words

    def _gather(self, source: Access, thread: int, map_: Decoded, box: Box) -> Array:
        """The bytes of a box, a row to each row; outside are zeros, or NaN."""
        data = np.zeros((len(box.rows), box.row_bytes), np.uint8)
        if map_.nan:
            data[:] = np.resize(_NAN, box.row_bytes)
        low, high = box.low * map_.element, box.high * map_.element
        rows = np.nonzero(box.inside)[0]
        if high <= low or not len(rows):
            return data
        width, address = _pieces(box.rows[rows] + low, high - low)
        found = self._pieces_of(_wide(source, width), thread, address)
        data[rows, low:high] = found.reshape(len(rows), high - low)
        return data

    def _pieces_of(self, m: Access, thread: int, address: Array) -> Array:
        """Bytes of global memory, checked; zeros outside of buffers."""
        many = Active(np.full(len(address), thread), np.full(len(address), thread))
        data, where = np.zeros((len(address), m.width), np.uint8), address - GLOBAL_BASE
        keep = self.usable(m, self.globals, where, many)
        rows = np.arange(len(where)) if keep is None else keep
        if len(rows):
            self.reads(m, self.globals, where[rows], where[rows], many.at(rows))
            data[rows] = self.globals.data[where[rows][:, None] + np.arange(m.width)]
        return data


def _box(map_: Decoded, corner: list[int]) -> Box:
    rows, inside = np.zeros(1, np.int64), np.ones(1, bool)
    for at, size, stride, side, step in list(
        zip(corner, map_.sizes, map_.strides, map_.box, map_.steps, strict=True)
    )[:0:-1]:
        index = at + np.arange(-(-side // step)) * step
        rows = (rows[:, None] + index * stride).reshape(-1)
        inside = (inside[:, None] & (index >= 0) & (index < size)).reshape(-1)
    side, size = map_.box[0], map_.sizes[0]
    low, high = (min(max(n - corner[0], 0), side) for n in (0, size))
    rows = rows + map_.address + corner[0] * map_.element
    return Box(rows, inside & (high > low), low, high, side * map_.element)


def _image(map_: Decoded, box: Box) -> Array:
    """Where the 16-byte pieces of a box lie in shared memory, before the swizzle: rows that are
    shorter than the swizzle are as far apart as it spans."""
    rows = np.arange(len(box.rows))[:, None] * (map_.swizzle or box.row_bytes)
    return (rows + np.arange(0, box.row_bytes, 16)).reshape(-1)


def _pieces(rows: Array, length: int) -> tuple[int, Array]:
    """The widest pieces, up to 16 bytes, that each row of ``length`` bytes is made of, and their
    addresses."""
    if not len(rows) or length <= 0:
        return 16, np.zeros(0, np.int64)
    ends = int(np.bitwise_or.reduce(rows)) | length | 16
    width = ends & -ends
    return width, (rows[:, None] + np.arange(0, length, width)).reshape(-1)
