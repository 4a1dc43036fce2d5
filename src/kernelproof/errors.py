"""Every error that kernelproof raises on purpose.

    KernelproofError                 exit code 3: a fault of kernelproof itself
    ├── UsageError                   2: the request cannot be carried out as written
    │   ├── ProblemError             2: the problem cannot be read, or its reference fails
    │   └── CandidateNotFound        2: there is no such candidate
    └── CandidateError               1: the candidate is at fault; `status` names how
        ├── CompileError             1: compile_error
        ├── ContractError            1: wrong (no ModelNew, or not a Module)
        ├── CandidateCrash           1: crash (raised, died by a signal)
        ├── CandidateTimeout         1: timeout
        └── UnsupportedError         1: unsupported (needs hardware or a tool that is missing here)

A message names the value received, what is accepted, and, where there is one, the next command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def meant(given: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` where one of ``known`` is close to ``given``, else empty."""
    close = difflib.get_close_matches(given, list(known), 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def no_case(given: str, names: Iterable[str]) -> str:
    """What a problem that has the cases ``names`` lacks, and what it has."""
    known = list(names)
    return f"has no case {given!r}{meant(given, known)}; it has {', '.join(known)}"


class KernelproofError(Exception):
    """Base of all errors; ``exit_code`` is the command line's answer to it, and ``status`` the word
    that its JSON has."""

    exit_code = 3
    status = "fault"

    def as_dict(self) -> dict[str, Any]:
        """What a command prints of it under ``--json``."""
        return {"status": self.status, "message": str(self), "exit_code": self.exit_code}


class UsageError(KernelproofError):
    """The request cannot be carried out as written."""

    exit_code = 2
    status = "usage"


class ProblemError(UsageError):
    """The problem file cannot be read, or its reference does not run."""


class CandidateNotFound(UsageError):
    """The candidate's path does not exist."""


class CandidateError(KernelproofError):
    """The candidate is at fault. ``status`` is the word that the record holds.

    ``detail`` is longer text for the reader (compiler lines, a traceback in the candidate's own
    files); it may be empty. ``clean``: the candidate raised, and its process can go on.
    """

    exit_code = 1
    status = "wrong"
    clean = False

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "detail": self.detail}


class CompileError(CandidateError):
    """The candidate's sources do not compile; ``detail`` has the compiler's own lines."""

    status = "compile_error"


class ContractError(CandidateError):
    """The candidate lacks what every candidate must have, such as ``ModelNew``."""

    status = "wrong"


class CandidateCrash(CandidateError):
    """The candidate raised, or its process died."""

    status = "crash"


class CandidateTimeout(CandidateError):
    """The candidate did not answer within the stage's time limit."""

    status = "timeout"


class UnsupportedError(CandidateError):
    """The candidate needs hardware or a tool that this machine does not have."""

    status = "unsupported"
