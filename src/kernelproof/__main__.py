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
    """Run a command; an interrupt ends it with a line and 130, also while modules are imported."""
    try:
        _run()
    except KeyboardInterrupt:
        print("kernelproof: interrupted", file=sys.stderr)
        _leave(SystemExit(130))


def _run() -> None:
    """Ask a session's judge, where there is one. Elsewhere start the server of workers, where it
    will be needed, even before the command line is imported."""
    words = sys.argv[1:]
    first, second, *_ = (*words[:2], "", "")
    if "--help" not in words:
        if first == "session":
            _resident(words)
        if first in _JUDGING or (first == "session" and second in _IN_A_SESSION):
            from kernelproof.worker.client import start_server

            start_server()
    with uncollected():
        from kernelproof.cli import main

    try:
        main()
    except SystemExit as end:
        _leave(end)


def _resident(words: list[str]) -> None:
    """Ends this process where the session's judge carries out what it is asked for; starts one
    where a session is to be opened."""
    from kernelproof import timeline
    from kernelproof.resident import client, launch, place

    ask = client.parsed(words)
    if ask is not None:
        timeline.begin()
        try:
            exit_code = client.carried_out(ask)
        except KeyboardInterrupt:
            print("kernelproof: interrupted", file=sys.stderr)
            exit_code = 130
        if exit_code is not None:
            _leave(SystemExit(exit_code))
        client.settled = True
    elif words[1:2] == ["start"] and "--no-judge" not in words and not place.switched_off():
        launch.begin()


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
