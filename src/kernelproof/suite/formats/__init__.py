"""Formats of suites: how a folder becomes a `Suite`."""

from __future__ import annotations

from pathlib import Path

from kernelproof.errors import UsageError
from kernelproof.suite.formats import folder
from kernelproof.suite.model import Suite


def load(
    path: str | Path,
    format: str | None = None,
    level: int | None = None,
    candidates: str | Path | None = None,
) -> Suite:
    """The suite at ``path``. Raises UsageError where it is none."""
    if format not in (None, "folder"):
        raise UsageError(f"no format {format!r}; there is folder")
    if level is not None:
        raise UsageError(f"--level {level}: a plain folder of problems has no levels")
    return folder.load(Path(path), Path(candidates) if candidates is not None else None)
