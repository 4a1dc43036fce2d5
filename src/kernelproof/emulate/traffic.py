"""How well the accesses of a warp fit the memory: bank conflicts and uncoalesced access.

A model of what one access of a warp moves, not of time. Shared memory has 32 banks of four bytes;
lanes that touch different words of one bank take turns (CUDA C++ Programming Guide, "Shared
Memory"). Lanes with 8 and 16 bytes each are taken to go by half and quarter warps, as a pass holds
128 bytes. Global memory moves in sectors of 32 bytes (CUDA C++ Best Practices Guide, "Coalesced
Access to Global Memory"). Caches are left out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.report import Report

Array = Any

_BANKS, _WORD, _SECTOR = 32, 4, 32
# An access counts as coalesced where at least this share of what it moves is of use.
_USEFUL = 0.5


@dataclasses.dataclass
class Count:
    """Of the accesses at one place: by how many warps, of these with a conflict, units moved
    (passes or sectors), the fewest that would do, and the most in one access of a warp."""

    operation: int
    warps: int = 0
    conflicts: int = 0
    moved: int = 0
    fewest: int = 0
    worst: int = 0


class Traffic:
    """Counts of one launch, by line and direction."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._counts: dict[tuple[str, str, str], Count] = {}

    def add(self, m: Access, space: str, address: Array, threads: Array) -> None:
        """An access of ``threads`` (numbers, 32 to a warp) at ``address`` in bytes, one each."""
        instruction = self._report.operations[m.operation]
        # The order of atomics, and of the elements of a wmma fragment, is the hardware's own.
        if m.kind == "atomic" or instruction.op[0] == "wmma" or space not in ("shared", "global"):
            return
        made = _passes if space == "shared" else _sectors
        warps, moved, fewest = made(address.astype(np.int64), threads.astype(np.int64), m.width)
        writes = m.kind == "store" or (m.kind == "copy" and space == "shared")
        key = space, instruction.where(), "stores" if writes else "loads"
        count = self._counts.setdefault(key, Count(m.operation))
        count.warps += warps
        count.conflicts += int((moved > fewest).sum())
        count.moved += int(moved.sum())
        count.fewest += int(fewest.sum())
        count.worst = max(count.worst, int(moved.max(initial=0)))

    def finish(self) -> None:
        """Report what was counted, as notes."""
        for (space, _, direction), count in self._counts.items():
            words = f"{direction} of {count.warps} warps take"
            if space == "shared" and count.moved > count.fewest:
                text = (
                    f"{words} {count.moved} passes over the banks where {count.fewest} would do, "
                    f"at most {count.worst} in one"
                )
                self._note("bank conflict", count, text, count.conflicts)
            elif space == "global" and count.fewest < _USEFUL * count.moved:
                text = (
                    f"{words} {count.moved} sectors of {_SECTOR} bytes where {count.fewest} would "
                    f"do, at most {count.worst} in one"
                )
                self._note("uncoalesced", count, text, count.conflicts)

    def _note(self, kind: str, count: Count, text: str, times: int) -> None:
        self._report.add(kind, count.operation, text, subject=text, count=times)


def _passes(address: Array, threads: Array, width: int) -> tuple[int, Array, Array]:
    """Warps, and per warp the passes over the banks and the fewest that hold its words."""
    lanes = min(32, _BANKS * _WORD // max(width, _WORD))
    words = (address // _WORD)[:, None] + np.arange(max(width // _WORD, 1))
    group = np.broadcast_to((threads // lanes)[:, None], words.shape)
    pairs = np.unique(np.stack([group.reshape(-1), words.reshape(-1)], 1), axis=0)
    banks, each = np.unique(np.stack([pairs[:, 0], pairs[:, 1] % _BANKS], 1), axis=0,
                            return_counts=True)  # fmt: skip
    groups, at = np.unique(banks[:, 0], return_inverse=True)
    passes, total = np.zeros(len(groups), np.int64), np.zeros(len(groups), np.int64)
    np.maximum.at(passes, at, each)
    np.add.at(total, at, each)
    warps, owner = np.unique(groups * lanes // 32, return_inverse=True)
    moved, fewest = np.zeros(len(warps), np.int64), np.zeros(len(warps), np.int64)
    np.add.at(moved, owner, passes)
    np.add.at(fewest, owner, -(-total // _BANKS))
    return len(warps), moved, fewest


def _sectors(address: Array, threads: Array, width: int) -> tuple[int, Array, Array]:
    """Warps, and per warp the sectors touched and the fewest that hold its bytes."""
    warps, owner = np.unique(threads // 32, return_inverse=True)

    def distinct(unit: int) -> Array:
        pairs = np.unique(np.stack([owner, address // unit], 1), axis=0)
        return np.bincount(pairs[:, 0], minlength=len(warps))

    return len(warps), distinct(_SECTOR), -(-distinct(width) * width // _SECTOR)
