"""Floors are measured once for a device with its driver and torch, and kept in the data folder.

The measuring runs in a process of its own: its memory is given back, and what this process holds
(a CUDA context, thread pools) does not matter. One at a time; callers see to it that nothing is
being timed meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from kernelproof.errors import KernelproofError, UsageError
from kernelproof.home import home
from kernelproof.types import Floors, Progress, silent

# Raised when what is measured changes: floors of an older method are measured anew.
_METHOD = 1
_TIMEOUT = 120.0


def load(device: str) -> Floors | None:
    """The floors of ``device`` ("cpu", "cuda", "cuda:1") as measured earlier, or None."""
    path = _path(device)
    try:
        return Floors.model_validate_json(path.read_text())
    except (OSError, ValidationError):
        return None


def get(device: str, progress: Progress = silent, refresh: bool = False) -> Floors:
    """The floors of ``device``, measured now where they were not or with ``refresh``.

    Raises:
        UsageError: no such device here.
        KernelproofError: the measuring failed; the message has its last lines.
    """
    check_device(device)
    with _alone():
        found = None if refresh else load(device)
        if found is None:
            progress("measure what this device can do, once", 0, 1)
            found = _measure(device)
            path = _path(device)
            part = path.with_suffix(f".{os.getpid()}")
            part.write_text(found.model_dump_json(indent=1) + "\n")
            part.replace(path)
    return found


def default_device() -> str:
    """The GPU where there is one, else the CPU."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str) -> None:
    """Raises UsageError where ``device`` is not one of this machine."""
    import torch

    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise UsageError(f"no device {device!r}; there are cpu, cuda and cuda:<index>")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {device!r}: torch sees no CUDA GPU; see `kernelproof doctor`")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise UsageError(f"device {device!r}: there are {torch.cuda.device_count()} CUDA GPUs")


def names(device: str) -> tuple[str, str]:
    """(device, software) as the floors name them."""
    import torch

    from kernelproof.environment import capture

    env = capture()
    if device == "cpu":
        return env.cpu, f"torch {env.torch}"
    name = torch.cuda.get_device_name(int(device.partition(":")[2] or 0))
    return name, f"torch {env.torch}, CUDA {env.cuda}, driver {env.gpu_driver or 'unknown'}"


def _path(device: str) -> Path:
    import torch

    threads = torch.get_num_threads() if device == "cpu" else 0
    words = (*names(device), str(threads), str(_METHOD))
    return home() / "floors" / f"{hashlib.sha256(repr(words).encode()).hexdigest()[:16]}.json"


@contextmanager
def _alone() -> Iterator[None]:
    folder = home() / "floors"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _measure(device: str) -> Floors:
    import torch

    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "kernelproof.floors", device, str(torch.get_num_threads())]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        raise KernelproofError(
            f"measuring the floors of {device} took more than {_TIMEOUT:g} s"
        ) from None
    if done.returncode:
        last = "; ".join(done.stderr.strip().splitlines()[-3:])
        raise KernelproofError(f"measuring the floors of {device} failed: {last}")
    try:
        return Floors.model_validate_json(done.stdout)
    except ValidationError as error:
        raise KernelproofError(f"measuring the floors of {device} gave no result") from error
