"""Processes of a candidate that came to where only commands of the user may come: the socket of a
session's judge (see `resident.server`). They are turned away there; the verdict tells of it."""

from __future__ import annotations

_seen: list[str] = []


def note(words: str) -> None:
    """A process of the candidate did what ``words`` say."""
    _seen.append(words)


def taken() -> list[str]:
    """What was noted since the last call, each text once."""
    found, _seen[:] = list(dict.fromkeys(_seen)), []
    return found
