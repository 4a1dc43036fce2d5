"""Records in a database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Row, Select, case, func, select
from sqlalchemy.exc import IntegrityError

from kernelproof.errors import UsageError
from kernelproof.store.schema import RECORDS, default_url
from kernelproof.store.upgrade import engine_of, shown
from kernelproof.types import Record


class Store:
    """The records at ``url`` (any SQLAlchemy URL; the data folder's SQLite file by default)."""

    def __init__(self, url: str | None = None) -> None:
        url = url or default_url()
        self.url = shown(url)
        self._engine = engine_of(url)

    def add(self, record: Record) -> bool:
        """Keep ``record``; one that is there already stays. Whether it is new."""
        row = dict(
            id=record.id,
            created=record.created,
            problem=record.problem.name,
            candidate=record.candidate.name,
            digest=record.candidate.digest,
            status=record.status,
            device=record.environment.gpu or record.environment.cpu,
            body=record.model_dump_json(),
        )
        try:
            with self._engine.begin() as connection:
                connection.execute(RECORDS.insert(), row)
        except IntegrityError:
            # Two writers of one record: the other was first. Anything else is not this error.
            if not self._bodies(select(RECORDS.c.body).where(RECORDS.c.id == record.id)):
                raise
            return False
        return True

    def latest(self, count: int | None = 50, problem: str | None = None) -> list[Record]:
        """The newest ``count`` records (None: all), newest first."""
        query = select(RECORDS.c.body).order_by(RECORDS.c.created.desc()).limit(count)
        if problem is not None:
            query = query.where(RECORDS.c.problem == problem)
        return [Record.model_validate_json(body) for body in self._bodies(query)]

    def index(self, count: int = 50, problem: str | None = None) -> list[Row[Any]]:
        """The columns of the newest ``count`` records without their bodies, newest first."""
        columns = [column for column in RECORDS.c if column.name != "body"]
        query = select(*columns).order_by(RECORDS.c.created.desc()).limit(count)
        if problem is not None:
            query = query.where(RECORDS.c.problem == problem)
        with self._engine.connect() as connection:
            return list(connection.execute(query))

    def counts(self) -> dict[str, tuple[int, int]]:
        """Problem -> how many records it has, and how many of them passed."""
        c = RECORDS.c
        passed = func.sum(case((c.status == "pass", 1), else_=0))
        query = select(c.problem, func.count(), passed).group_by(c.problem)
        with self._engine.connect() as connection:
            return {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(query)}

    def timed(self, problem: str | None = None) -> Iterator[Record]:
        """All records with times, one after the other: their samples are many."""
        query = select(RECORDS.c.body).where(RECORDS.c.status == "pass")
        if problem is not None:
            query = query.where(RECORDS.c.problem == problem)
        with self._engine.connect() as connection:
            for body in connection.scalars(query.execution_options(yield_per=20)):
                record = Record.model_validate_json(body)
                if record.timing is not None:
                    yield record

    def passing(self, problem: str) -> list[Record]:
        """All records of candidates of ``problem`` that passed."""
        query = select(RECORDS.c.body).where(
            RECORDS.c.problem == problem, RECORDS.c.status == "pass"
        )
        return [Record.model_validate_json(body) for body in self._bodies(query)]

    def get(self, record_id: str) -> Record:
        """The record whose id begins with ``record_id``. Raises UsageError if it is not one."""
        bodies = self._bodies(
            select(RECORDS.c.body).where(RECORDS.c.id.startswith(record_id)).limit(2)
        )
        if len(bodies) != 1:
            what = "no record" if not bodies else "more than one record"
            raise UsageError(f"{what} begins with {record_id!r} in {self.url}")
        return Record.model_validate_json(bodies[0])

    def _bodies(self, query: Select[tuple[str]]) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.scalars(query))
