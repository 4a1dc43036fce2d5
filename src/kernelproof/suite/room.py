"""The memory of a GPU on which several items are judged at a time, and that of the machine.

Nothing is timed there, so they may share it. Each takes as much of the memory as it is likely to
need; one that ran out of it beside others is judged again alone, and only then it counts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Two contexts, code, and what a check holds in parts.
_BASE_BYTES = 2e9
# Judge and candidate hold copies of inputs and outputs, the oracle's are twice as large: for a
# moment five times both (worked out from the tensors that are alive at each step; beyond it are a
# reference's own intermediates), and most of the time, while inputs are drawn and outputs sent,
# hardly any. Who runs out all the same is judged again.
_COPIES = 3.5
# What a judge that waits keeps, a context and blocks that torch has not given back; and what a GPU
# without any process lacks of its size, with some to spare.
_IDLE_BYTES = 2e9
_SLACK_BYTES = 6e9
_LOOK_SECONDS = 1.0
# Of the machine's own memory: two processes with CUDA; the inputs as they are drawn and as they are
# sent, and the outputs as they are sent and as they are judged.
_HOST_BASE_BYTES = 4e9
_HOST_COPIES = 2.2
_MOST_NAMED = 3


def _command(pid: int) -> str:
    """Such as " (python3)"; "" for a process that this machine does not show."""
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""


def needed(held: int) -> float:
    """Bytes of a GPU's memory that judging a problem may need whose inputs and outputs are ``held``
    bytes."""
    return _BASE_BYTES + _COPIES * held


def needed_of_host(held: int) -> float:
    """Bytes of the machine's own memory that judging such a problem may need."""
    return _HOST_BASE_BYTES + _HOST_COPIES * held


class Room:
    """``size`` bytes, for whoever asks first: one that needs much is not passed by for ever.

    Args:
        free: how many bytes nobody holds now, by the driver.
        lanes: judges that share it; each keeps a context and some memory while it waits.
        holders: how many bytes each process holds now, by the driver, which may know of none.
    """

    def __init__(
        self, size: float, free: Callable[[], float] | None = None, lanes: int = 1,
        holders: Callable[[], dict[int, float]] = dict,
    ) -> None:  # fmt: skip
        self.size = size
        self._free_now = free
        self._holders = holders
        self._idle = _SLACK_BYTES + lanes * _IDLE_BYTES
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

    def lacking(self, patience: float = 0.0) -> str:
        """To be asked by who has taken all of it: "" once all is free but for what waiting judges
        keep; after ``patience`` seconds, in words, how little is."""
        if self._free_now is None:
            return ""
        end = time.monotonic() + patience
        while (free := self._free_now()) < self.size - self._idle:
            if time.monotonic() >= end:
                return (
                    f"memory ran out while processes that are not the run's held the GPU's: "
                    f"{free / 1e9:.0f} of {self.size / 1e9:.0f} GB were free{self._held()}. Resume "
                    "the run when they are gone"
                )
            time.sleep(min(_LOOK_SECONDS, patience))
        return ""

    def _held(self) -> str:
        """Who holds most, in words; "" where that is not known."""
        held: dict[int, float] = {}
        with contextlib.suppress(Exception):  # of NVML; the processes may have just ended
            held = self._holders()
        most = sorted(held.items(), key=lambda item: -item[1])[:_MOST_NAMED]
        named = [f"{pid}{_command(pid)} {size / 1e9:.1f} GB" for pid, size in most if size > 0]
        return f", held by process {', '.join(named)}" if named else ""

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
