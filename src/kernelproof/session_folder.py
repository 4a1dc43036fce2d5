"""A session that is kept in a folder of its own: its store is there, and the folder is its name.

Imports nothing that takes long: a command that asks the session's judge reads it first.
"""

from __future__ import annotations

import json
from pathlib import Path

from kernelproof.errors import UsageError

FILE, STORE = "session.json", "records.sqlite"


def store_in(folder: Path) -> str:
    """The URL of the store of a session that is to be kept in ``folder``, which is made.

    Raises:
        UsageError: there is one already, or no folder can be made there.
    """
    if (folder / FILE).is_file():
        found = json.loads((folder / FILE).read_text())["session"]
        raise UsageError(
            f"{folder} has the session {found}: go on with it, `kernelproof session log {folder}` "
            "shows it; or name another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be the session's folder: {error}") from error
    return f"sqlite:///{folder.resolve() / STORE}"


def note(folder: Path, session: str) -> None:
    """``session`` is the one in ``folder``."""
    (folder / FILE).write_text(json.dumps({"session": session}) + "\n")


def is_one(session: str | Path) -> bool:
    """Whether ``session`` is the folder of one."""
    return (Path(session) / FILE).is_file()


def resolved(session: str, store: str | None) -> tuple[str, str | None]:
    """Id and store of a session that is given by its folder; what else is given, as it is."""
    path = Path(session) / FILE
    if not is_one(session):
        return session, store
    try:
        found = str(json.loads(path.read_text())["session"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} does not name a session: {error!r}") from error
    return found, store or f"sqlite:///{path.parent.resolve() / STORE}"
