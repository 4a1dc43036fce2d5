"""A command's side: ask the session's judge, or say why this command judges by itself.

Imported before anything that takes long, so that asking takes no longer than the answer.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from pathlib import Path
from typing import Any

from kernelproof import session_folder, timeline
from kernelproof.errors import UsageError
from kernelproof.progress import Shown
from kernelproof.resident import launch, place
from kernelproof.resident.place import Line

CALLS = ("compile", "check", "bench", "inspect", "submit")
_HELLO_SECONDS = 60.0  # it may be importing torch
_FAULT = 3
# Whether it is settled that this process judges by itself.
settled = False
_ITSELF = "this command judges by itself"


@dataclasses.dataclass(frozen=True)
class Ask:
    """A command `kernelproof session WHAT SESSION CANDIDATE`. ``judge``: whether it may ask one."""

    what: str
    session: str
    candidate: str
    short: bool = False
    json: bool = False
    store: str | None = None
    judge: bool = True


def parsed(words: list[str]) -> Ask | None:
    """``session check ID CANDIDATE ...``; None for what is not plainly that, which is for the
    command line to read, and to refuse."""
    if len(words) < 4 or words[0] != "session" or words[1] not in CALLS:
        return None
    places: list[str] = []
    fields: dict[str, Any] = {}
    rest = iter(words[2:])
    for word in rest:
        if word in ("--short", "--json"):
            fields[word[2:]] = True
        elif word in ("--judge", "--no-judge"):
            fields["judge"] = word == "--judge"
        elif word == "--store":
            fields["store"] = next(rest, None)
        elif word.startswith("--store="):
            fields["store"] = word.partition("=")[2]
        elif word.startswith("-"):
            return None
        else:
            places.append(word)
    if len(places) != 2 or fields.get("store", "given") is None:
        return None
    return Ask(words[1], places[0], places[1], **fields)


def carried_out(ask: Ask) -> int | None:
    """Let the session's judge carry out a call, and print its answer. Another is started where the
    session's does not fit or has ended, and stderr says so.

    Returns:
        the exit code; None where this command is to judge by itself.
    """
    if settled or not ask.judge or place.switched_off():
        return None
    folder = _folder(ask.session)
    if folder is None:
        return None
    reason = ""
    for _ in range(3):
        card = place.card(folder)
        if card is None:  # stopped just now
            return None
        line = _connected(folder)
        if line is not None:
            with line.socket:
                found = _asked(line, ask, card)
            if isinstance(found, int):
                return found
            if found.get("busy"):
                _say(f"{found['why']}; {_ITSELF}")
                return None
            reason = str(found["why"])
        else:
            reason = reason or str(card.get("ended") or "it was killed, or did not start")
        _say(f"the session's judge is not there to ask ({reason}); starting another")
        failed = launch.told({k: card[k] for k in ("session", "problem", "device", "idle")})
        if failed:
            break
    else:
        failed = reason
    _say(f"no judge for this session: {failed}; {_ITSELF}")
    return None


def stop(session: str) -> str:
    """End the judge of a session, for good; what became of it, in words."""
    folder = _folder(session)
    if folder is None:
        return "the session has no judge"
    card = place.card(folder) or {}
    line = _connected(folder)
    words = "its judge had ended before"
    if line is not None:
        with line.socket:
            line.socket.settimeout(_HELLO_SECONDS)
            line.send({"do": "stop", "token": card.get("token")})
            found = line.receive() or {}
        if found.get("busy"):
            return f"{found['why']}: try again when that is over"
        words = "its judge has ended"
    (folder / place.CARD).unlink(missing_ok=True)
    return f"{words}; the session's commands judge by themselves"


def _folder(session: str) -> Path | None:
    """Where the judge of a session is, or was. What names no session is for `session` to refuse."""
    try:
        return place.folder_with_card(session_folder.resolved(session, None)[0])
    except UsageError:
        return None


def _connected(folder: Path) -> Line | None:
    """A line to the judge in ``folder``; None where nobody listens, or somebody else's process."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        with place.address(folder) as name:
            connection.connect(name)
        _, user = place.peer(connection)
    except OSError:
        connection.close()
        return None
    if user != os.geteuid():
        connection.close()
        return None
    return Line(connection)


def _asked(line: Line, ask: Ask, card: dict[str, Any]) -> int | dict[str, Any]:
    """The exit code; or why the judge does not do it ("why"), and whether it is ``busy``."""
    line.socket.settimeout(_HELLO_SECONDS)
    given = {
        "do": "call", "token": card.get("token"), "identity": place.identity(),
        "stages": timeline.wanted(), **dataclasses.asdict(ask),
    }  # fmt: skip
    try:
        line.send(given)
        found = line.receive()
    except OSError:
        found = None
    if found is None:
        return {"why": "it ended just now"}
    if "why" in found:
        return found
    line.socket.settimeout(None)
    began = timeline.moment()
    with Shown() as progress:
        while (found := line.receive()) is not None and "progress" in found:
            progress(*found["progress"])
    return _told(found, began)


def _told(found: dict[str, Any] | None, began: float) -> int:
    """Print what the judge has to say; the exit code."""
    if found is None:
        print(
            "kernelproof: the session's judge was killed during this call, which is lost and stays "
            "paid; the session goes on: `kernelproof session log` shows it",
            file=sys.stderr,
        )
        return _FAULT
    timeline.adopt(found.get("stages") or [], began)
    if found.get("errors"):
        print(found["errors"], file=sys.stderr)
    if found.get("text"):
        print(found["text"])
    return int(found["exit"])


def _say(words: str) -> None:
    print(f"kernelproof: {words}", file=sys.stderr, flush=True)
