"""Where the wall time of a command goes, for whoever waits for it.

With ``KERNELPROOF_TIMELINE=1`` a command ends with its stages on stderr: when each began, how long
it took, and whether beside the others; with any other value they are written to a file of that
name, as JSON. Times are seconds since the process started. Stages contain others.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
    """The stages of this process so far: of each when it first began, for how long it went on in
    all, how many times, and whether in a thread beside the main one."""

    def __init__(self) -> None:
        self.started = time.monotonic() - _age()
        self.marked = 0.0
        self.stages: dict[tuple[bool, str], list[float]] = {}

    def now(self) -> float:
        return time.monotonic() - self.started

    def add(self, name: str, began: float) -> None:
        beside = threading.current_thread() is not threading.main_thread()
        self.count(beside, name, began, self.now() - began, 1)

    def count(self, beside: bool, name: str, began: float, taken: float, times: int) -> None:
        stage = self.stages.setdefault((beside, name), [began, 0.0, 0])
        stage[0] = min(stage[0], began)
        stage[1] += taken
        stage[2] += times

    def rows(self) -> list[dict[str, Any]]:
        found = [
            {"stage": name, "began": began, "seconds": taken, "times": int(times), "beside": beside}
            for (beside, name), (began, taken, times) in self.stages.items()
        ]
        return sorted(found, key=lambda row: (row["began"], -row["seconds"]))

    def text(self) -> str:
        lines = ["   began     took  stage ('|': beside the others)"]
        for row in self.rows():
            if row["seconds"] >= _SHORT:
                mark, times = "| " if row["beside"] else "", row["times"]
                words = f"{mark}{row['stage']}" + (f" ({times} times)" if times > 1 else "")
                lines.append(f"{row['began']:7.2f}s {row['seconds']:7.2f}s  {words}")
        return "\n".join(lines)

    def tell(self, where: str) -> None:
        self.add("the whole command", 0.0)
        if where == "1":
            print(self.text(), file=sys.stderr)
        else:
            Path(where).write_text(json.dumps(self.rows(), indent=1) + "\n")


def _age() -> float:
    """Seconds since this process was started: the interpreter's own start is part of the wait."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[19])  # starttime, in clock ticks since the boot: proc(5)
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


_timeline: Timeline | None = None


def wanted() -> bool:
    """Whether anybody wants to know."""
    return _timeline is not None


def moment() -> float:
    """Seconds since the process started, where anybody wants to know; else 0."""
    return _timeline.now() if _timeline is not None else 0.0


@contextlib.contextmanager
def during(wanted: bool, start: float) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Inside, this process notes stages for another, from ``start`` (of the monotonic clock) on, if
    that is ``wanted``. Gives what returns them, for `adopt`."""
    global _timeline
    before, mine = _timeline, None
    if wanted:
        mine = Timeline()
        mine.started = start
    _timeline = mine
    try:
        yield lambda: mine.rows() if mine is not None else []
    finally:
        _timeline = before


def adopt(rows: list[dict[str, Any]], began: float) -> None:
    """Add stages of another process, which it counts from ``began`` on (see `moment`)."""
    if _timeline is not None:
        for row in rows:
            start = began + row["began"]
            _timeline.count(row["beside"], row["stage"], start, row["seconds"], row["times"])


def begin() -> None:
    """Note stages from now on, if the environment asks for it, and tell them in the end."""
    global _timeline
    where = os.environ.get(_VARIABLE, "")
    if where and _timeline is None:
        _timeline = Timeline()
        atexit.register(_timeline.tell, where)
