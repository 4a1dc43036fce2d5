"""What the pages ask of the store."""

from __future__ import annotations

import re
from typing import Any

from starlette.exceptions import HTTPException

from kernelproof import session
from kernelproof.serve.calls import Calls
from kernelproof.serve.guard import Access
from kernelproof.store import Sessions, Store, Suites
from kernelproof.suite import runs
from kernelproof.types import Record, SessionLog, SuiteState

_IDENTITY = re.compile(r"[0-9a-f-]{4,40}")


class Desk:
    """A store, who may do what, and the calls that this server carries out.

    Raises:
        UsageError: the store cannot be opened.
    """

    def __init__(self, store: str | None, access: Access, calls: Calls) -> None:
        self.store, self.access, self.calls = store, access, calls
        self.records, self.sessions = Store(store), Sessions(store)
        self.suites = Suites(store)

    def record(self, identity: str) -> Record:
        """Raises UsageError if there is none."""
        return self.records.get(_whole(identity))

    def log(self, identity: str) -> SessionLog:
        """Raises UsageError if there is none."""
        return session.log(_whole(identity), store=self.store)

    def row(self, identity: str) -> Any:
        """A session as it is in the store. Raises UsageError if there is none."""
        return self.sessions.get(_whole(identity))

    def suite(self, identity: str) -> SuiteState:
        """A run of a suite as it is now. Raises UsageError if there is none."""
        return runs.state(_whole(identity), store=self.store)

    def stamp(self, identity: str) -> Any:
        """Changes with a session. Marks calls whose process has died."""
        session.recovered(self.sessions, identity)
        row = self.sessions.get(identity)
        calls = [(call.number, call.state) for call in self.sessions.calls(row.id)]
        return row.state, row.used, calls, self.calls.words.get(row.id, "")


def _whole(identity: str) -> str:
    """What can be an id: the store takes any beginning of one, and so do addresses."""
    if not _IDENTITY.fullmatch(identity):
        raise HTTPException(404)
    return identity
