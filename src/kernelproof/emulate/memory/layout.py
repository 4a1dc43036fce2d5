"""Where things lie: windows of the generic address space, arrays with red zones between them."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Sequence

# Generic addresses of shared and local memory lie in windows; global ones are themselves.
WINDOWS = {
    "global": 0,
    "const": 0,
    "param": 0,
    "shared": 0x7000_0000_0000,
    "local": 0x7800_0000_0000,
}
GLOBAL_BASE = 0x0100_0000_0000
RED_ZONE = 256  # bytes before and after every array


@dataclasses.dataclass
class Region:
    """An array: bytes ``start`` to ``stop`` of its space are its own.

    ``written``, ``loaded``: whether the kernel did so. ``complete``: every byte has a value.
    ``tracked``: its reads are recorded, so that a later write by another thread is seen.
    """

    name: str
    start: int
    stop: int
    complete: bool = True
    constant: bool = False
    written: bool = False
    loaded: bool = False
    tracked: bool = False
    read_only_line: int = -1  # operation that read it through the read-only path

    @property
    def size(self) -> int:
        return self.stop - self.start


class Layout:
    """Regions in ascending order, found by address."""

    def __init__(self, regions: Iterable[Region] = ()) -> None:
        self.regions: list[Region] = sorted(regions, key=lambda r: r.start)
        self._starts = [region.start for region in self.regions]

    def at(self, address: int) -> Region | None:
        """The region that holds this byte."""
        n = bisect.bisect_right(self._starts, address) - 1
        if n >= 0 and address < self.regions[n].stop:
            return self.regions[n]
        return None

    def describe(self, address: int, width: int) -> str:
        """Where ``width`` bytes at ``address`` lie, relative to the nearest array."""
        if not self.regions:
            return f"address {address:#x}, where nothing is"
        best = min(
            self.regions,
            key=lambda r: max(r.start - address, address + width - r.stop, 0),
        )
        size = f"the {best.size} bytes of {best.name}"
        if address >= best.stop:
            past = address + width - best.stop
            if past > 1 << 32:
                return f"at address {address:#x}, far from {best.name} and every other array"
            return f"{past} bytes past the end of {size}"
        if address < best.start:
            if best.start - address > 1 << 32:
                return f"at address {address:#x}, far from {best.name} and every other array"
            return f"{best.start - address} bytes before the start of {size}"
        if address + width > best.stop:
            return f"{address + width - best.stop} bytes past the end of {size}"
        return f"inside {size}"


def place(sizes: Sequence[tuple[str, int, int]], first: int = 0) -> tuple[list[int], int]:
    """Offsets for (name, size, align) with a red zone after each, and the end of it all."""
    offsets, at = [], first
    for _, size, align in sizes:
        at = -(-at // align) * align
        offsets.append(at)
        at += size + RED_ZONE
    return offsets, -(-at // RED_ZONE) * RED_ZONE
