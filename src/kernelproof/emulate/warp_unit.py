"""Shuffles, votes, matches and sums over the threads of warps."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelproof.emulate.active import Active, choose, scatter
from kernelproof.emulate.checks import Checks, Restart

Array = Any

_BITS = np.arange(32, dtype=np.uint64)
_LANES = np.arange(32)
_EMPTY = np.zeros(0, np.uint32)


class Warps:
    """Values over active threads as rows of 32 lanes, and back."""

    def __init__(self, active: Active) -> None:
        self.active = active
        self.whole = active.whole_warps()
        threads = active.threads
        if self.whole:
            self.warps = threads[::32] >> 5
            self.present = np.ones((len(self.warps), 32), bool)
        else:
            self.warps, self.row = np.unique(threads >> 5, return_inverse=True)
            self.lane = threads & 31
            self.present = np.zeros((len(self.warps), 32), bool)
            self.present[self.row, self.lane] = True

    def rows(self, value: Any) -> Array:
        """(warps, 32); lanes that are not active hold zero."""
        value = self.active.spread(value)
        if self.whole:
            return value.reshape(-1, 32)
        out = np.zeros(self.present.shape, value.dtype)
        out[self.row, self.lane] = value
        return out

    def flat(self, rows: Array) -> Array:
        if self.whole:
            return np.ascontiguousarray(rows).reshape(-1)
        return rows[self.row, self.lane]

    def bits(self, rows: Array) -> Array:
        """One uint32 per warp of a bool per lane."""
        return (rows.astype(np.uint64) << _BITS).sum(axis=1).astype(np.uint32)


class WarpUnit(Checks):
    """``live``: threads of the batch that have not ended. ``split``: warp operations wait."""

    live: Array
    split: bool

    def _begin(self, operation: int, mask: Any, A: Active, guard: Any) -> tuple[Any, Any]:
        """Positions and warps; reports lanes that the mask names and that are not here."""
        positions = A.positions(guard)
        active = A.at(positions)
        warps = Warps(active)
        if warps.whole and np.ndim(mask) == 0 and mask == 0xFFFFFFFF:
            return positions, warps
        if active.count:
            self._check_mask(operation, active.spread(choose(mask, positions)), active, warps)
        return positions, warps

    def _check_mask(self, operation: int, mask: Array, active: Active, warps: Warps) -> None:
        lane = (active.threads & 31).astype(np.uint32)
        unnamed = (mask >> lane) & np.uint32(1) == 0
        if unnamed.any():
            n = int(np.argmax(unnamed))
            self.report.add(
                "absent lanes", operation,
                f"the mask {int(mask[n]):#010x} does not name the thread itself, "
                f"{self.who(self.first + active.threads[n])}",
                subject="self", count=int(unnamed.sum()),
            )  # fmt: skip
        if warps.whole:
            return
        here = warps.bits(warps.present)
        missing = mask & ~here[warps.row]
        if not missing.any():
            return
        n = int(np.argmax(missing != 0))
        lanes = [i for i in range(32) if int(missing[n]) >> i & 1]
        first = int(active.threads[n]) // 32 * 32
        if not self.split and self.live[[first + i for i in lanes]].any():
            raise Restart(split=True)
        names = _ranges(lanes)
        self.report.add(
            "absent lanes", operation,
            f"the mask {int(mask[n]):#010x} names lanes {names}, which do not take part; "
            f"{self.who(self.first + active.threads[n])}",
            count=int((missing != 0).sum()),
        )  # fmt: skip

    def shuffle(
        self, operation: int, mode: str, a: Any, b: Any, c: Any, mask: Any, A: Active, guard: Any
    ) -> tuple[Array, Array]:
        """Value and whether the source lane was in range (ISA 9.7.9.6)."""
        positions, warps = self._begin(operation, mask, A, guard)
        if warps.active.count == 0:
            return np.zeros(A.count, np.uint32), np.zeros(A.count, bool)
        values = warps.rows(choose(a, positions))
        b, c = choose(b, positions), choose(c, positions)
        b = int(b) if np.ndim(b) == 0 else warps.rows(b).astype(np.int64)
        c = int(c) if np.ndim(c) == 0 else warps.rows(c).astype(np.int64)
        clamp, segment = c & 31, (c >> 8) & 31
        top = (_LANES & segment) | (clamp & ~segment)
        low = _LANES & segment
        b = b & 31
        if mode == "up":
            source = _LANES - b
            valid = source >= top
        elif mode == "down":
            source = _LANES + b
            valid = source <= top
        elif mode == "bfly":
            source = _LANES ^ b
            valid = source <= top
        else:
            source = low | (b & ~segment)
            valid = source <= top
        source = np.where(valid, source, _LANES)
        if source.ndim == 1:
            out, valid = values[:, source], np.broadcast_to(valid, values.shape)
        else:
            out = np.take_along_axis(values, source, axis=1)
        if not warps.whole:
            self._check_source(operation, source, warps)
        count = A.count
        return (
            scatter(warps.flat(out), positions, count),
            scatter(warps.flat(valid), positions, count),
        )

    def _check_source(self, operation: int, source: Array, warps: Warps) -> None:
        """A lane that is not active gives nothing; what arrives is undefined."""
        source = np.broadcast_to(source, warps.present.shape)
        absent = warps.present & ~np.take_along_axis(warps.present, source, axis=1)
        if absent.any():
            row, lane = (int(x[0]) for x in np.nonzero(absent))
            thread = int(warps.warps[row]) * 32 + lane
            self.report.add(
                "absent lanes", operation,
                f"lane {lane} takes a value from lane {int(source[row, lane])}, which is not here; "
                f"{self.who(self.first + thread)}",
                subject="source", count=int(absent.sum()),
            )  # fmt: skip

    def vote(self, operation: int, mode: str, p: Any, mask: Any, A: Active, guard: Any) -> Array:
        positions, warps = self._begin(operation, mask, A, guard)
        if warps.active.count == 0:
            return np.zeros(A.count, np.uint32 if mode == "ballot" else bool)
        members = (warps.active.spread(choose(mask, positions))).astype(np.uint32)
        yes = warps.rows(choose(p, positions))
        ballot = warps.flat(np.repeat(warps.bits(yes)[:, None], 32, axis=1)) & members
        here = warps.flat(np.repeat(warps.bits(warps.present)[:, None], 32, axis=1)) & members
        out = {"ballot": ballot, "any": ballot != 0, "all": ballot == here}.get(mode)
        if out is None:  # uni
            out = (ballot == here) | (ballot == 0)
        return scatter(out, positions, A.count)

    def active_mask(self, A: Active, guard: Any) -> Array:
        positions = A.positions(guard)
        warps = Warps(A.at(positions))
        if warps.active.count == 0:
            return np.zeros(A.count, np.uint32)
        bits = warps.flat(np.repeat(warps.bits(warps.present)[:, None], 32, axis=1))
        return scatter(bits, positions, A.count)

    def match(
        self, operation: int, mode: str, a: Any, mask: Any, A: Active, guard: Any
    ) -> tuple[Array, Array]:
        positions, warps = self._begin(operation, mask, A, guard)
        if warps.active.count == 0:
            return np.zeros(A.count, np.uint32), np.zeros(A.count, bool)
        members = warps.active.spread(choose(mask, positions)).astype(np.uint32)
        values = warps.rows(choose(a, positions))
        equal = (values[:, :, None] == values[:, None, :]) & warps.present[:, None, :]
        bits = (equal.astype(np.uint64) << _BITS).sum(axis=2).astype(np.uint32)
        out = warps.flat(bits) & members
        here = warps.flat(np.repeat(warps.bits(warps.present)[:, None], 32, axis=1)) & members
        whole = out == here
        if mode == "all":
            out = np.where(whole, members, np.uint32(0))
        return scatter(out, positions, A.count), scatter(whole, positions, A.count)

    def reduce(self, operation: int, what: str, a: Any, mask: Any, A: Active, guard: Any) -> Array:
        """redux.sync: the same result in every member."""
        positions, warps = self._begin(operation, mask, A, guard)
        value = warps.active.spread(choose(a, positions))
        if warps.active.count == 0:
            return np.zeros(A.count, value.dtype)
        members = warps.active.spread(choose(mask, positions)).astype(np.uint32)
        rows = warps.rows(value)
        function, neutral = {
            "add": (np.add, 0), "or": (np.bitwise_or, 0), "xor": (np.bitwise_xor, 0),
            "and": (np.bitwise_and, -1), "min": (np.minimum, None), "max": (np.maximum, None),
        }[what]  # fmt: skip
        if neutral is None:
            info = np.iinfo(rows.dtype)
            neutral = info.max if what == "min" else info.min
        empty = np.array(neutral).astype(rows.dtype)
        # Members of different masks reduce apart: each lane over the lanes of its own mask.
        masks = warps.rows(members)
        if (masks == masks[:, :1]).all() and warps.whole:
            inside = (masks[:, :1] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
            total = function.reduce(np.where(inside, rows, empty), axis=1)
            out = np.repeat(total[:, None], 32, axis=1)
        else:
            inside = (masks[:, :, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
            inside = (inside == 1) & warps.present[:, None, :]
            out = function.reduce(np.where(inside, rows[:, None, :], empty), axis=2)
        return scatter(warps.flat(out.astype(rows.dtype)), positions, A.count)

    def elect(self, operation: int, mask: Any, A: Active, guard: Any) -> tuple[Array, Array]:
        positions, warps = self._begin(operation, mask, A, guard)
        members = warps.active.spread(choose(mask, positions)).astype(np.uint32)
        lowest = members & (~members + np.uint32(1))
        lane = np.log2(np.maximum(lowest, 1)).astype(np.uint32)
        mine = (warps.active.threads & 31) == lane
        return scatter(lane, positions, A.count), scatter(mine, positions, A.count)


def _ranges(numbers: list[int]) -> str:
    """Such as "0-15, 20"."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
