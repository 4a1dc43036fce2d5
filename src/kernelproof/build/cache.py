"""The build cache: content-addressed folders, safe for builds that run at the same time.

What a candidate builds stays apart from all else (see `home.builds`): it could leave something in a
folder that another's sources, or those of an operator, will be looked for in.

A key is a hash over everything that can change the result: sources, flags, toolchain versions,
architecture. A folder is filled under a lock and published by rename, so a reader never sees half
a build and a killed build leaves nothing behind but a temporary folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kernelproof.home import builds, home


def build_root() -> Path:
    """The folder to which builds of this process go."""
    root = builds()
    root.mkdir(parents=True, exist_ok=True)
    return root


def content_key(*parts: object) -> str:
    """A 32-digit hash of ``parts``; each part is separated, so ("ab", "c") != ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:32]


@functools.cache
def compiler_identity(compiler: str) -> str:
    """First line of ``compiler --version``, or "missing" where it cannot be run."""
    try:
        out = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return "missing"
    lines = [line for line in out.stdout.splitlines() if line.strip()]
    # nvcc prints its release on the last line, gcc on the first.
    return " / ".join((lines[0], lines[-1])) if lines else "missing"


@functools.lru_cache(maxsize=1)
def cpu_identity() -> str:
    """What ``-march=native`` depends on: the machine type and the processor's feature flags."""
    flags = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = line
                break
    return content_key(platform.machine(), flags)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on ``path`` (created if needed) across processes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


def cached(key: str, fill: Callable[[Path], None]) -> tuple[Path, bool]:
    """The folder of build ``key``, filled by ``fill(temporary_folder)`` unless it is there.

    Returns the folder and whether it was already there. An error in ``fill`` leaves no folder.
    A candidate's process takes what the data folder has, and puts what it has not into its own.
    """
    trusted, final = home() / "builds" / key, build_root() / key
    for found in (trusted, final):
        if found.is_dir():
            return found, True
    with locked(build_root() / f"{key}.lock"):
        if final.is_dir():
            return final, True
        temporary = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=build_root()))
        try:
            fill(temporary)
            temporary.rename(final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    return final, False
