"""The command `kernelproof`, and ``python -m kernelproof``."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn

from kernelproof.importing import uncollected

# Commands that judge: each needs the server of workers, whose import of torch takes longest.
_JUDGING = ("check", "bench", "demo", "prove", "verify", "mcp")
_IN_A_SESSION = ("compile", "check", "bench", "submit")


def run() -> None:
    """Start that server, where it will be needed, even before the command line is imported."""
    first, second, *_ = (*sys.argv[1:3], "", "")
    judges = first in _JUDGING or (first == "session" and second in _IN_A_SESSION)
    if judges and "--help" not in sys.argv:
        from kernelproof.worker.client import start_server

        start_server()
    with uncollected():
        from kernelproof.cli import main

    try:
        main()
    except SystemExit as end:
        _leave(end)


def _leave(end: SystemExit) -> NoReturn:
    """End as the interpreter does, except that it would take the modules apart first: of torch that
    takes half a second, for which whoever called waits."""
    others = [t for t in threading.enumerate() if t is not threading.current_thread()]
    if isinstance(end.code, str) or not all(thread.daemon for thread in others):
        raise end
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads; the interpreter has words and a status for that
        raise end from None
    os._exit(end.code or 0)


if __name__ == "__main__":
    run()
