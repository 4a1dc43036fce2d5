"""The command `kernelproof`, and ``python -m kernelproof``."""

from __future__ import annotations

import sys

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
    from kernelproof.cli import main

    main()


if __name__ == "__main__":
    run()
