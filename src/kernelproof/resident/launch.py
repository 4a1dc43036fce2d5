"""Start the judge of a session."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import Any

from kernelproof import openmp
from kernelproof.resident.place import Line

_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[2]); "
    "from kernelproof.resident.server import main; main(int(sys.argv[1]))"
)
# Until it listens. Python starts in a tenth of that, and torch is imported later.
_SECONDS = 30.0


class Launch:
    """A judge that is under way, and imports torch while the session is still being opened. It ends
    unless `tell` says whose it is."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), json.dumps(sys.path)],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=openmp.users_environment(),
            # It outlives this command, and an interrupt at the terminal is not for it.
            start_new_session=True,
        )  # fmt: skip
        theirs.close()

    def tell(self, card: dict[str, Any]) -> str:
        """Whose judge it is; waits until it listens.

        Args:
            card: ``session`` (its id), ``problem`` (path), ``device`` (None: whatever a candidate
                needs) and ``idle`` (seconds).

        Returns:
            why there is none; "" where it listens.
        """
        line = Line(self._ours)
        self._ours.settimeout(_SECONDS)
        try:
            line.send(card)
            found = line.receive()
        except OSError as error:
            return f"it did not start: {error}"
        finally:
            self._ours.close()
        if found is None:
            return "it ended while it started"
        return str(found.get("problem", ""))


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
