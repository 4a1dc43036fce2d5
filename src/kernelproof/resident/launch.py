"""Start the judge of a session."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from kernelproof import openmp
from kernelproof.resident import place

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelproof.resident.server import main; main(int(sys.argv[1]))"
)
_LOCK_SECONDS = 15.0  # in which the judge before this one lets go
_WAIT = 0.02


class Launch:
    """A judge that is under way, and imports torch while the session is still being opened. It ends
    unless `tell` says whose it is."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=openmp.users_environment(),
            # It outlives this command, and an interrupt at the terminal is not for it.
            start_new_session=True,
        )  # fmt: skip
        theirs.close()

    def tell(self, card: dict[str, Any]) -> str:
        """Whose judge it is. This process listens for it, so that the next command finds it at
        once, whatever it is doing by then.

        Args:
            card: ``session`` (its id), ``problem`` (path), ``device`` (None: whatever a candidate
                needs) and ``idle`` (seconds).

        Returns:
            why there is none; "" where it is on its way.
        """
        folder = place.folder_of(str(card["session"]))
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(folder) as held, _listening(folder) as listening:
                token, pid = secrets.token_hex(32), self._process.pid
                full = {**card, "token": token, "pid": pid, "ended": ""}
                place.write_card(folder, full)
                socket.send_fds(
                    self._ours, [json.dumps(full).encode()], [listening.fileno(), held.fileno()]
                )
        except OSError as error:
            return f"it cannot listen in {folder}: {error}"
        finally:
            self._ours.close()
        return ""


def received(fd: int) -> tuple[dict[str, Any], socket.socket, int] | None:
    """In the judge: its card, the socket that it listens on, and the file that it has locked; None
    where the session was not opened. ``fd``: of what leads to its `Launch`."""
    with socket.socket(fileno=fd) as channel:
        text, fds, _, _ = socket.recv_fds(channel, 1 << 20, 2)
    if not text:
        return None
    for each in fds:
        os.set_inheritable(each, False)
    return json.loads(text), socket.socket(fileno=fds[0]), fds[1]


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[IO[str]]:
    """The file that the living judge of a session has locked. The lock goes with the open file: it
    is the judge's as soon as that has it, too."""
    with (folder / place.LOCK).open("a") as held:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise OSError("another judge of this session is alive") from None
                time.sleep(_WAIT)
        yield held


@contextlib.contextmanager
def _listening(folder: Path) -> Iterator[socket.socket]:
    """A socket for this user alone."""
    (folder / place.SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)
        try:
            with place.address(folder) as name:
                listening.bind(name)
        finally:
            os.umask(before)
        listening.listen(16)
        yield listening


_under_way: Launch | None = None


def begin() -> Launch:
    """The judge that is under way; one is started where there is none."""
    global _under_way
    if _under_way is None:
        _under_way = Launch()
    return _under_way


def told(card: dict[str, Any]) -> str:
    """`Launch.tell` for the judge that is under way, which from then on is somebody's."""
    global _under_way
    launch, _under_way = begin(), None
    return launch.tell(card)
