"""The threads that execute a block now."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


class Active:
    """``index``: threads of the batch in ascending order, or None for all of them; ``threads``:
    the same as an array always."""

    __slots__ = ("_whole", "count", "index", "threads")

    def __init__(self, threads: Array, index: Array | None) -> None:
        self.threads = threads
        self.index = index
        self.count = len(threads)
        self._whole: bool | None = True if index is None else None

    def whole_warps(self) -> bool:
        """Whether every warp present has all its 32 threads."""
        if self._whole is None:
            t = self.threads
            self._whole = self.count % 32 == 0 and bool(
                ((t[::32] & 31) == 0).all() and (t[31::32] == t[::32] + 31).all()
            )
        return self._whole

    def positions(self, guard: Any) -> Array | None:
        """Where ``guard`` (a bool array, a numpy bool, or None) holds; None for everywhere."""
        if guard is None:
            return None
        if np.ndim(guard) == 0:
            return None if guard else np.zeros(0, np.intp)
        return None if guard.all() else np.nonzero(guard)[0]

    def at(self, positions: Array | None) -> Active:
        if positions is None:
            return self
        chosen = self.threads[positions]
        return Active(chosen, chosen)

    def spread(self, value: Any) -> Array:
        """``value`` as an array over the threads."""
        return value if np.ndim(value) else np.full(self.count, value)


def choose(value: Any, positions: Array | None) -> Any:
    """The part of a value over threads; numpy scalars stay."""
    return value if positions is None or np.ndim(value) == 0 else value[positions]


def scatter(values: Any, positions: Array | None, count: int) -> Any:
    """Values over all threads from those at ``positions``; the others are zero."""
    if positions is None:
        return values
    out = np.zeros(count, np.asarray(values).dtype)
    out[positions] = values
    return out
