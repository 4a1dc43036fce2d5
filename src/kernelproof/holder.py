"""Who carries out a call: a process, known for sure also after its number was given to another."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path


def mine() -> str:
    """This process: machine, boot, number and start."""
    return f"{_machine()}|{os.getpid()}|{_started(os.getpid())}"


def gone(holder: str) -> bool:
    """Whether ``holder`` has ended. Of a process on another machine that cannot be seen from here:
    it counts as there."""
    machine, pid, started = holder.rsplit("|", 2)
    return machine == _machine() and _started(int(pid)) != started


@functools.cache
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}|{boot.read_text().strip() if boot.is_file() else ''}"


def _started(pid: int) -> str:
    """In clock ticks after the boot; "" where there is no such process, or only its remains."""
    try:
        # The name, in parentheses, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
