"""How OpenMP threads wait in the judging process.

libgomp's idle threads spin for some milliseconds after every parallel region. Judging is a series
of short ones with Python in between, so that spinning cost more than the work: a check of mla_kv
took 31 s of processor time with it and 14 s without, on two busy cores. Workers keep the default,
since there it is part of what is timed.
"""

from __future__ import annotations

import os
import sys

_NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
_ours = False


def wait_passively() -> None:
    """Let this process's OpenMP threads sleep at once. Does nothing where the user has chosen, or
    where torch, and with it libgomp, is loaded already: it reads the choice once."""
    global _ours
    if "torch" not in sys.modules and not any(name in os.environ for name in _NAMES):
        os.environ[_NAMES[0]] = "PASSIVE"
        _ours = True


def users_environment() -> dict[str, str]:
    """The environment as the user gave it, for processes that are timed."""
    return {k: v for k, v in os.environ.items() if not (_ours and k == _NAMES[0])}
