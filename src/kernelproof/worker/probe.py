"""Whether CUDA starts in a confined worker on this machine, and what has to be left out if not."""

from __future__ import annotations

import dataclasses
import functools

from kernelproof.errors import CandidateError
from kernelproof.worker.client import Worker
from kernelproof.worker.limits import confine

_SECONDS = 60.0  # the first start of CUDA in a process takes up to some ten
# What is left out, the least first.
_TRIALS: tuple[tuple[str, ...], ...] = (
    (),
    ("network",),
    ("rights",),
    ("files",),
    ("network", "rights"),
    ("network", "files"),
    ("rights", "files"),
    ("network", "rights", "files"),
)


@functools.cache
def without_for_cuda() -> tuple[str, ...]:
    """Protections under which CUDA does not start here, such as ("files",): in some containers the
    driver needs what they take. Without a candidate's fault it would otherwise be judged `crash`.

    Empty too where CUDA does not start at all, which is not for the limits to mend.
    """
    for trial in _TRIALS:
        if _starts(trial):
            return trial
    return ()


def _starts(without: tuple[str, ...]) -> bool:
    limits = dataclasses.replace(confine(None, (), True), without=without)
    try:
        with Worker("probe", limits) as worker:
            worker.ask("cuda", timeout=_SECONDS)
    except CandidateError:
        return False
    return True
