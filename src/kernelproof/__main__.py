"""The command `kernelproof`, and ``python -m kernelproof``."""

from __future__ import annotations

import sys

# Commands that judge: each needs the server of workers, whose import of torch takes longest.
_JUDGING = ("check", "bench", "demo")


def run() -> None:
    """Start that server, where it will be needed, even before the command line is imported."""
    if sys.argv[1:2] and sys.argv[1] in _JUDGING and "--help" not in sys.argv:
        from kernelproof.worker.client import start_server

        start_server()
    from kernelproof.cli import main

    main()


if __name__ == "__main__":
    run()
