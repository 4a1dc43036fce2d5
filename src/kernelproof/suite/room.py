"""The memory of a GPU on which several items are judged at a time.

Nothing is timed there, so they may share it. Each takes as much of the memory as it is likely to
need; one that ran out of it beside others is judged again alone, and only then it counts.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

# Two contexts, code, and what a check holds in parts.
_BASE_BYTES = 2e9
# Judge and candidate hold copies of inputs and outputs, the oracle's are twice as large: for a
# moment five times both (worked out from the tensors that are alive at each step; beyond it are a
# reference's own intermediates), and most of the time, while inputs are drawn and outputs sent,
# hardly any. Who runs out all the same is judged again.
_COPIES = 3.5
# The last two: where the machine's own memory ends, its kernel kills the candidate's process; and
# what a candidate may hold is a share of what others have left.
_SIGNS = (
    "out of memory", "OutOfMemoryError", "CUBLAS_STATUS_ALLOC_FAILED", "was killed by signal 9",
    "GB are allowed",
)  # fmt: skip


def needed(held: int) -> float:
    """Bytes of a GPU's memory that judging a problem may need whose inputs and outputs are ``held``
    bytes."""
    return _BASE_BYTES + _COPIES * held


def starved(text: str) -> bool:
    """Whether a message tells of memory that was missing."""
    return any(sign in text for sign in _SIGNS)


class Room:
    """``size`` bytes, for whoever asks first: one that needs much is not passed by for ever."""

    def __init__(self, size: float) -> None:
        self.size = size
        self._free = size
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._lease: Any = None

    @contextlib.contextmanager
    def taken(self, size: float) -> Iterator[None]:
        """Inside, so much is taken, all at the most."""
        size = min(size, self.size)
        me = object()
        with self._changed:
            self._queue.append(me)
            self._changed.wait_for(lambda: self._queue[0] is me and size <= self._free)
            self._queue.popleft()
            self._free -= size
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += size
                self._changed.notify_all()

    def hold(self, device: str) -> None:
        """Hold the lease of ``device`` until `close`: those that share the GPU have it together."""
        from kernelproof import lease

        with self._changed:
            if self._lease is None:
                self._lease = contextlib.ExitStack()
                self._lease.enter_context(lease.hold(device))

    def close(self) -> None:
        with self._changed:
            if self._lease is not None:
                self._lease.close()
                self._lease = None
