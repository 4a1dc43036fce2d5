"""Where kernelproof keeps its files: the environment variables that it reads are read here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from kernelproof.errors import UsageError

STORE_VARIABLE = "KERNELPROOF_STORE"
TUNE_VARIABLE = "KERNELPROOF_TUNE"
# Set in a candidate's process only: where its builds go.
BUILDS_VARIABLE = "KERNELPROOF_BUILDS"


def home() -> Path:
    """The data folder: ``$KERNELPROOF_HOME``, else ``$XDG_CACHE_HOME/kernelproof``, else
    ``~/.cache/kernelproof``. Created on first use.

    Raises UsageError where it cannot be.
    """
    explicit = os.environ.get("KERNELPROOF_HOME")
    if explicit:
        path = Path(explicit).expanduser()
    else:
        base = os.environ.get("XDG_CACHE_HOME")
        path = (Path(base) if base else Path.home() / ".cache") / "kernelproof"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the data folder {path}: {error.strerror}; KERNELPROOF_HOME names another"
        ) from error
    return path


def keep(root: Path, files: Mapping[str, str]) -> None:
    """Write ``files`` (relative name -> text) below ``root``, where they are not there already.
    Others who write the same at the same time, or read, see whole files only."""
    for file, text in files.items():
        path = root / file
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}.part")
            part.write_text(text)
            part.replace(path)


def builds() -> Path:
    """The folder of builds of this process: the data folder's, which whoever uses an operator loads
    into a process of their own; in a candidate's process one that no other candidate has."""
    own = os.environ.get(BUILDS_VARIABLE)
    return Path(own) if own else home() / "builds"


def store_url() -> str | None:
    """The database of records and sessions that ``$KERNELPROOF_STORE`` names (any SQLAlchemy URL,
    such as ``postgresql://host/name``); None where it names none."""
    return os.environ.get(STORE_VARIABLE) or None


def tuning_wanted() -> bool:
    """Whether ``$KERNELPROOF_TUNE`` asks shipped operators to measure their choices here.

    Raises ValueError for what is neither 0 nor 1.
    """
    value = os.environ.get(TUNE_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(
            f"{TUNE_VARIABLE} is {value!r}; accepted are 1 (measure each form of call once, and "
            "keep the choice on disk) and 0"
        )
    return value == "1"
