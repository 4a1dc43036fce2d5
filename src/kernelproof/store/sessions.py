"""Sessions and their calls in a database.

What several processes may want at once (a call of the budget, the one submission) is decided by one
UPDATE with its condition, which every database carries out for one of them at a time.
"""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

from sqlalchemy import Connection, Row, select, update
from sqlalchemy.exc import IntegrityError

from kernelproof.errors import UsageError
from kernelproof.store.schema import CALLS, SESSIONS, SOURCES, default_url
from kernelproof.store.upgrade import engine_of, shown

SUBMIT = "submit"


class Sessions:
    """The sessions at ``url``; see `records.Store`. Rows are plain: bodies are text that the caller
    makes and reads."""

    def __init__(self, url: str | None = None) -> None:
        url = url or default_url()
        self.url = shown(url)
        self._engine = engine_of(url)

    def create(
        self, session: str, problem: str, budget: int, ends: datetime.datetime | None, body: str
    ) -> None:
        """A new, open session."""
        row = dict(
            id=session, created=now(), problem=problem, state="open", budget=budget, used=0,
            calls=0, ends=ends, body=body,
        )  # fmt: skip
        with self._engine.begin() as connection:
            connection.execute(SESSIONS.insert(), row)

    def get(self, session: str) -> Row[Any]:
        """The session whose id begins with ``session``. Raises UsageError if it is not one."""
        query = select(SESSIONS).where(SESSIONS.c.id.startswith(session, autoescape=True)).limit(2)
        with self._engine.connect() as connection:
            rows = connection.execute(query).all()
        if len(rows) != 1 or not session:
            what = "no session" if not rows else "more than one session"
            raise UsageError(
                f"{what} begins with {session!r} in {self.url}; `kernelproof session list` names "
                "them, `kernelproof session start PROBLEM` makes one"
            )
        return rows[0]

    def latest(self, count: int) -> list[Row[Any]]:
        """The newest ``count`` sessions, newest first."""
        query = select(SESSIONS).order_by(SESSIONS.c.created.desc()).limit(count)
        with self._engine.connect() as connection:
            return list(connection.execute(query))

    def calls(self, session: str) -> list[Row[Any]]:
        """The calls of a session in their order."""
        query = select(CALLS).where(CALLS.c.session == session).order_by(CALLS.c.number)
        with self._engine.connect() as connection:
            return list(connection.execute(query))

    def of_problem(self, problem: str, count: int) -> list[Row[Any]]:
        """The newest ``count`` sessions on ``problem``, newest first."""
        query = select(SESSIONS).where(SESSIONS.c.problem == problem)
        query = query.order_by(SESSIONS.c.created.desc()).limit(count)
        with self._engine.connect() as connection:
            return list(connection.execute(query))

    def sources(self, key: str) -> str:
        """The sources that `begin` was given."""
        with self._engine.connect() as connection:
            found = connection.scalar(select(SOURCES.c.body).where(SOURCES.c.id == key))
        return str(found)

    def begin(
        self, session: str, what: str, cost: int, holder: str, candidate: str, digest: str,
        sources: str,
    ) -> int | None:  # fmt: skip
        """Take a call of ``cost`` from the budget; its number, or None where there is none left,
        the time is over, or the session is not open. A submission costs nothing, waits for no
        time, and is one at a time."""
        key = hashlib.sha256(sources.encode()).hexdigest()
        self._keep(key, sources)
        s = SESSIONS.c
        taken = update(SESSIONS).where(s.id == session, s.state == "open")
        if what == SUBMIT:
            taken = taken.values(state="submitting", calls=s.calls + 1)
        else:
            taken = taken.where(s.used + cost <= s.budget, (s.ends.is_(None)) | (s.ends > now()))
            taken = taken.values(used=s.used + cost, calls=s.calls + 1)
        with self._engine.begin() as connection:
            if connection.execute(taken).rowcount != 1:
                return None
            number = connection.scalar(select(s.calls).where(s.id == session))
            row = dict(
                session=session, number=number, what=what, state="running", cost=cost,
                started=now(), ended=None, holder=holder, candidate=candidate, digest=digest,
                sources=key, body="",
            )  # fmt: skip
            connection.execute(CALLS.insert(), row)
        return int(number or 0)

    def finish(self, session: str, number: int, body: str) -> None:
        """A call has its answer; a submission closes the session."""
        with self._engine.begin() as connection:
            self._end(connection, session, number, "done", body)
            c = CALLS.c
            what = select(c.what).where(c.session == session, c.number == number)
            if connection.scalar(what) == SUBMIT:
                self._state(connection, session, "submitting", "closed")

    def refund(self, session: str, number: int, why: str) -> None:
        """A call was not carried out, by no fault of the candidate: it costs nothing."""
        with self._engine.begin() as connection:
            if not self._end(connection, session, number, "refused", why):
                return
            call = (CALLS.c.session == session, CALLS.c.number == number)
            what, cost = connection.execute(select(CALLS.c.what, CALLS.c.cost).where(*call)).one()
            connection.execute(
                update(SESSIONS).where(SESSIONS.c.id == session).values(used=SESSIONS.c.used - cost)
            )
            if what == SUBMIT:
                self._state(connection, session, "submitting", "open")

    def lose(self, session: str, number: int) -> None:
        """The process of a running call has ended without an answer. The call stays paid."""
        with self._engine.begin() as connection:
            if not self._end(connection, session, number, "lost", ""):
                return
            c = CALLS.c
            what = select(c.what).where(c.session == session, c.number == number)
            if connection.scalar(what) == SUBMIT:
                self._state(connection, session, "submitting", "open")

    def _keep(self, key: str, sources: str) -> None:
        with self._engine.connect() as connection:
            if connection.scalar(select(SOURCES.c.id).where(SOURCES.c.id == key)) is not None:
                return
        try:
            with self._engine.begin() as connection:
                connection.execute(SOURCES.insert(), dict(id=key, body=sources))
        except IntegrityError:
            # Another process was first with the same text.
            return

    @staticmethod
    def _end(connection: Connection, session: str, number: int, state: str, body: str) -> bool:
        """End a running call; whether this was what ended it."""
        c = CALLS.c
        ended = update(CALLS).where(c.session == session, c.number == number, c.state == "running")
        values = dict(state=state, ended=now(), body=body)
        return connection.execute(ended.values(**values)).rowcount == 1

    @staticmethod
    def _state(connection: Connection, session: str, before: str, after: str) -> None:
        s = SESSIONS.c
        changed = update(SESSIONS).where(s.id == session, s.state == before)
        connection.execute(changed.values(state=after))


def now() -> datetime.datetime:
    """The time, with its zone."""
    return datetime.datetime.now(datetime.timezone.utc)


def aware(moment: datetime.datetime) -> datetime.datetime:
    """``moment`` from a database: SQLite forgets the zone, which is always UTC."""
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)
