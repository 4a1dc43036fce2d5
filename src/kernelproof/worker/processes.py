"""What the supervisor does to processes: find descendants, see what they hold, end them all; and
what the parent sees of them from outside."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1


def adopt_orphans() -> None:
    """Descendants whose parent ends become this process's children, also those that have left
    their group and session."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int) -> None:
    """This process is killed when the thread that forked it ends; ``parent`` is its process."""
    _prctl(_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(71)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def descendants(root: int) -> dict[int, str]:
    """Process ids below ``root`` and the times at which they were started (as /proc words them)."""
    children: dict[int, list[int]] = {}
    started: dict[int, str] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  four times as fast as pathlib
        if entry.isdecimal():
            found = _parent_and_start(int(entry))
            if found is not None:
                children.setdefault(found[0], []).append(int(entry))
                started[int(entry)] = found[1]
    below: dict[int, str] = {}
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop()
        if pid not in below:
            below[pid] = started[pid]
            queue += children.get(pid, ())
    return below


def processor_seconds(root: int) -> float:
    """Processor time of all processes below ``root``, of those that have ended too where somebody
    has waited for them. To 10 ms, as the kernel tells it."""
    ticks, queue = _ticks(root)[1], _children(root)
    while queue:
        pid = queue.pop()
        ticks += sum(_ticks(pid))
        queue += _children(pid)
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> tuple[int, int]:
    """Of the process, and of its children that have ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:  # noqa: PTH123
            fields = handle.read().rpartition(b")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/children").read_bytes()
                found += map(int, text.split())
    return found


def _parent_and_start(pid: int) -> tuple[int, str] | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:  # noqa: PTH123
            # The name, in parentheses, may hold anything.
            fields = handle.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1]), fields[19].decode()


def held_bytes(pid: int) -> int:
    """Memory that is the process's own or shared by name, resident; without mapped files. 0 where
    there is no such process."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith((b"RssAnon:", b"RssShmem:")):
                total += int(line.split()[1]) * 1024
    return total


def image(pid: int) -> tuple[int, ...]:
    """Where the program of a process, its stack and its arguments lie: others after an `exec`, and
    the same in what is forked. Zeros where this process may not know."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return tuple(int(fields[at]) for at in (23, 25, 45, 47))
    return ()


# Where one of these is set, a library binds the threads of its own process to processors.
_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")


def scheduling(pid: int) -> tuple[Any, ...]:
    """Niceness, policy and processors of a process's main thread, which any process of the same
    user may change; empty where it is gone."""
    with contextlib.suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid)
        bound = any(name in os.environ for name in _BINDING)
        return *own, () if bound else tuple(sorted(os.sched_getaffinity(pid)))
    return ()


def kill(pid: int, started: str) -> None:
    """Kill ``pid`` if it is still the process that was started then."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        fd = watch_fd(pid)
        try:
            found = _parent_and_start(pid)
            if found is None or found[1] != started:
                return
            if fd is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            if fd is not None:
                os.close(fd)


def watch_fd(pid: int) -> int | None:
    """A descriptor that becomes readable when ``pid`` ends; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return None


def ended(pid: int) -> bool:
    """Whether a child has ended. Does not reap it, so that its number stays its own."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_all(group: int, seconds: float) -> tuple[dict[int, int], int]:
    """Kill every descendant of this process, and process group ``group``, until none is left.
    The group's leader must be a child that is not reaped yet.

    Returns wait statuses by process, and how many are still there after ``seconds``.
    """
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + seconds
    while True:
        if group not in statuses:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        left = descendants(os.getpid())
        for pid, started in left.items():
            kill(pid, started)
        try:
            while (done := os.waitpid(-1, os.WNOHANG))[0]:
                statuses[done[0]] = done[1]
        except ChildProcessError:
            return statuses, 0
        if time.monotonic() > deadline:
            return statuses, len(left)
        time.sleep(0.002)
