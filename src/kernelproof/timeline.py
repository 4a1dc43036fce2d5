"""Where the wall time of a command goes, for whoever waits for it.

With ``KERNELPROOF_TIMELINE=1`` a command ends with its stages on stderr: when each began, how long
it took, and in which thread; with any other value they are written to a file of that name, as JSON.
Times are seconds since the process started.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "KERNELPROOF_TIMELINE"
# Shorter ones are not printed; a file has all.
_SHORT = 0.05


@contextlib.contextmanager
def span(name: str) -> Iterator[None]:
    """What is done inside is a stage of this name, if anybody wants to know."""
    if _timeline is None:
        yield
        return
    began = _timeline.now()
    try:
        yield
    finally:
        _timeline.add(name, began)


def mark(name: str) -> None:
    """All since the process started, or since the last mark, is a stage of this name."""
    if _timeline is not None:
        _timeline.add(name, _timeline.marked)
        _timeline.marked = _timeline.now()


class Timeline:
    """The stages of this process so far, as (began, seconds, thread, name)."""

    def __init__(self) -> None:
        self.started = time.monotonic() - _age()
        self.marked = 0.0
        self.spans: list[tuple[float, float, str, str]] = []

    def now(self) -> float:
        return time.monotonic() - self.started

    def add(self, name: str, began: float) -> None:
        thread = threading.current_thread()
        where = "" if thread is threading.main_thread() else thread.name
        self.spans.append((began, self.now() - began, where, name))

    def text(self) -> str:
        shown = sorted(one for one in self.spans if one[1] >= _SHORT)
        lines = [f"{'began':>8} {'took':>8}  stage"]
        for began, seconds, thread, name in shown:
            lines.append(f"{began:7.2f}s {seconds:7.2f}s  {f'[{thread}] ' if thread else ''}{name}")
        return "\n".join(lines)

    def tell(self, where: str) -> None:
        self.add("the whole command", 0.0)
        if where == "1":
            print(self.text(), file=sys.stderr)
            return
        keys = ("began", "seconds", "thread", "stage")
        rows = [dict(zip(keys, one, strict=True)) for one in sorted(self.spans)]
        Path(where).write_text(json.dumps(rows, indent=1) + "\n")


def _age() -> float:
    """Seconds since this process was started: the interpreter's own start is part of the wait."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # starttime, in clock ticks since the boot: proc(5)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


_timeline: Timeline | None = None


def begin() -> None:
    """Note stages from now on, if the environment asks for it, and tell them in the end."""
    global _timeline
    where = os.environ.get(_VARIABLE, "")
    if where and _timeline is None:
        _timeline = Timeline()
        atexit.register(_timeline.tell, where)
