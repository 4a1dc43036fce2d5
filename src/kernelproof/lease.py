"""A fair lease of a device: who asked first gets it first, and one at a time.

Each device has a folder of tickets. A ticket is a file with the next number, locked by its holder
for as long as it lives: the kernel gives the lock up when a process dies, however it dies, and the
next one who looks removes the ticket. Whoever holds the lowest number that is still locked has the
device.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kernelproof.build.cache import locked
from kernelproof.home import home
from kernelproof.types import Progress, silent

_WAIT = 0.05


@contextlib.contextmanager
def hold(device: str, progress: Progress = silent) -> Iterator[None]:
    """Wait for ``device`` (any name) and hold it. ``progress`` is told the position in the queue
    while others are before."""
    folder = home() / "leases" / re.sub(r"[^\w.-]", "_", device)
    folder.mkdir(parents=True, exist_ok=True)
    ticket, handle = _draw(folder)
    try:
        last = 0
        while ahead := _ahead(folder, ticket):
            if ahead != last:
                progress(f"waiting for {device}: {ahead} before this", 0, 1)
                last = ahead
            time.sleep(_WAIT)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            ticket.unlink()
        handle.close()


def device_key(device: str) -> str:
    """The name by which processes that see other numbers for it know a device alike."""
    if device == "cpu":
        return "cpu"
    import torch

    return f"gpu-{torch.cuda.get_device_properties(torch.device(device)).uuid}"


def _draw(folder: Path) -> tuple[Path, IO[str]]:
    with locked(folder / "draw.lock"):
        counter = folder / "last"
        number = int(counter.read_text()) + 1 if counter.is_file() else 1
        ticket = folder / f"{number:015d}.ticket"
        # Open and locked before anybody else may look: a ticket without its lock is a dead one.
        handle = ticket.open("w")
        fcntl.flock(handle, fcntl.LOCK_EX)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        temporary = folder / "last.part"
        temporary.write_text(str(number))
        temporary.replace(counter)
    return ticket, handle


def _ahead(folder: Path, ticket: Path) -> int:
    """How many living tickets are before this one; dead ones are removed."""
    count = 0
    for other in sorted(folder.glob("*.ticket")):
        if other.name >= ticket.name:
            break
        if _dead(other, folder):
            with contextlib.suppress(FileNotFoundError):
                other.unlink()
        else:
            count += 1
    return count


def _dead(ticket: Path, folder: Path) -> bool:
    # Not while one is being drawn: its file is there a moment before its lock is.
    with (
        locked(folder / "draw.lock"),
        contextlib.suppress(FileNotFoundError),
        ticket.open() as handle,
    ):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
