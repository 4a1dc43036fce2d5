"""Where kernelproof keeps its files."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The data folder: ``$KERNELPROOF_HOME``, else ``$XDG_CACHE_HOME/kernelproof``, else
    ``~/.cache/kernelproof``. Created on first use."""
    explicit = os.environ.get("KERNELPROOF_HOME")
    if explicit:
        path = Path(explicit).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        path = (Path(base) if base else Path.home() / ".cache") / "kernelproof"
    path.mkdir(parents=True, exist_ok=True)
    return path
