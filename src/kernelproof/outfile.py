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
    """Write ``text`` as UTF-8. Raises UsageError where that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
