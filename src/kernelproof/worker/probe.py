"""Whether CUDA starts in a confined worker on this machine, and what has to be left out if not."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import threading
from pathlib import Path

from kernelproof.errors import CandidateError
from kernelproof.home import home
from kernelproof.worker import landlock, limits
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

_one_at_a_time = threading.Lock()


@functools.cache
def without_for_cuda() -> tuple[str, ...]:
    """Protections under which CUDA does not start here, such as ("files",): in some containers the
    driver needs what they take. Without a candidate's fault it would otherwise be judged `crash`.

    Empty too where CUDA does not start at all, which is not for the limits to mend. What was found
    is kept in the data folder, for this kernel, driver and version of kernelproof: a trial takes as
    long as a start of CUDA.
    """
    kept, key = home() / "cuda-limits.json", _key()
    # Who comes while another thread tries reads what that has found.
    with _one_at_a_time:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(kept.read_text())
            if known["key"] == key and tuple(known["without"]) in _TRIALS:
                return tuple(known["without"])
        return _found(kept, key)


def _found(kept: Path, key: str) -> tuple[str, ...]:
    for trial in _TRIALS:
        if _starts(trial):
            with contextlib.suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps({"key": key, "without": trial}))
            return trial
    return ()


def _key() -> str:
    """Of what decides: the machine as it was started, its driver, and the limits themselves."""
    driver = ""
    with contextlib.suppress(OSError):
        driver = Path("/proc/driver/nvidia/version").read_text()
    told = (os.uname().release, os.uname().version, driver, landlock.version(), os.getuid())
    sources = [Path(module.__file__ or "").read_bytes() for module in (landlock, limits)]
    return hashlib.sha256(repr(told).encode() + b"".join(sources)).hexdigest()


def _starts(without: tuple[str, ...]) -> bool:
    confinement = dataclasses.replace(confine(None, (), True), without=without)
    try:
        with Worker("probe", confinement) as worker:
            worker.ask("cuda", timeout=_SECONDS)
    except CandidateError:
        return False
    return True
