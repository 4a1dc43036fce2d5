"""Where the judge of a session is found, what a command has in common with it, how the two speak.

In the session's folder, below the data folder, are its socket, its card (0600: the token that a
command must show, and what it takes to start the next one), a file that it locks as long as it
lives, and what it printed. A candidate can read none of them; see docs/trust.md. A message is one
line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernelproof import __version__, openmp
from kernelproof.home import home

SOCKET, CARD, LOCK, LOG = "judge.sock", "judge.json", "judge.lock", "judge.log"
SWITCH = "KERNELPROOF_JUDGE"  # "off" in the environment: no command has one
IDLE = 900.0  # seconds without a call, after which it ends
# The longest message; a record with all samples stays in the store.
_MOST_BYTES = 64 << 20
# What differs from one shell, terminal or command to the next, and is nobody's setting. All other
# variables count: a candidate may read any of them.
_OF_THE_SHELL = re.compile(
    "_|PWD|OLDPWD|SHLVL|TERM|TERM_.*|COLORTERM|COLUMNS|LINES|WINDOWID|TMUX.*|STY|SSH_.*|PS[0-9]|"
    "HIST.*|PROMPT_COMMAND|KERNELPROOF_TIMELINE|KERNELPROOF_JUDGE|PYTEST_CURRENT_TEST"
)


def switched_off() -> bool:
    return os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false")


def folder_of(session: str) -> Path:
    """The folder of the session with the id ``session``."""
    return home() / "sessions" / session


def folder_with_card(session: str) -> Path | None:
    """The folder of the one session whose id begins with ``session`` and which has, or had, a
    judge; None where there is no such one."""
    if not re.fullmatch("[0-9a-f]+", session):
        return None
    found = list((home() / "sessions").glob(f"{session}*/{CARD}"))
    return found[0].parent if len(found) == 1 else None


def card(folder: Path) -> dict[str, Any] | None:
    """What the judge of ``folder`` has left of itself; None where there is nothing to be read."""
    try:
        found = json.loads((folder / CARD).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_card(folder: Path, body: dict[str, Any]) -> None:
    """In one step, and for this user alone."""
    part = folder / f".{CARD}.part"
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as handle:
        json.dump(body, handle)
    part.replace(folder / CARD)


def identity() -> dict[str, Any]:
    """What a judge and a command must have in common for the one to judge as the other would."""
    kept = openmp.users_environment()
    return {
        "Python": sys.executable,
        "kernelproof": f"{__version__} in {Path(__file__).parents[1]}",
        "search path": list(sys.path),
        "current folder": str(Path.cwd()),
        "environment": {k: v for k, v in kept.items() if not _OF_THE_SHELL.fullmatch(k)},
    }


def differences(mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What of two identities is not the same, in words."""
    found = [name for name in mine if name != "environment" and mine[name] != theirs.get(name)]
    here, there = mine["environment"], dict(theirs.get("environment") or {})
    names = sorted(name for name in here.keys() | there if here.get(name) != there.get(name))
    return found + [f"${name}" for name in names]


@contextlib.contextmanager
def address(folder: Path) -> Iterator[str]:
    """A name for the socket in ``folder`` that is short enough: that of a Unix socket has at most
    107 bytes (unix(7))."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Process and user at the other end, as the kernel knows them (of a listening socket: who made
    it listen); process 0 is one that cannot be seen from here."""
    size = 12
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, uid, _ = (int.from_bytes(found[i : i + 4], sys.byteorder) for i in range(0, size, 4))
    return pid, uid


class Line:
    """Messages on a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError where the other end has gone."""
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next message; None once the other end has gone, or where it sends nonsense. Raises
        TimeoutError as the socket does."""
        while b"\n" not in self._rest:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            self._rest += data
            if not data or len(self._rest) > _MOST_BYTES:
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            found = json.loads(line)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None
