"""Files that a user asks for: whether they can be written is known before work is done for them."""

from __future__ import annotations

import os
from pathlib import Path

from kernelproof.errors import UsageError


def check(path: Path) -> None:
    """Raises UsageError where ``path`` cannot be written."""
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder; name a file")
    if not folder.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write {path}: no permission")


def write(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8; an older file stays until the new one is whole. Raises UsageError
    where that fails."""
    # What is no plain file (/dev/stdout) is written to, not replaced.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    into = path if (path.exists() and not path.is_file()) or path.is_symlink() else part
    try:
        into.write_text(text, encoding="utf-8")
        if into is part:
            part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
