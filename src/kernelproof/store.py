"""Stage 7: records in a database through SQLAlchemy; SQLite in the data folder by default."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import (
    Column,
    DateTime,
    MetaData,
    Select,
    String,
    Table,
    Text,
    create_engine,
    select,
)
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from kernelproof.errors import UsageError
from kernelproof.home import home
from kernelproof.types import Record

# Tables rather than mapped classes: importing the mapper takes half as long as a quick check.
_METADATA = MetaData()
# What is searched for as columns, the whole record as JSON.
_RECORDS = Table(
    "records",
    _METADATA,
    Column("id", String(40), primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("problem", String(200), nullable=False, index=True),
    Column("candidate", String(200), nullable=False),
    Column("digest", String(40), nullable=False, index=True),
    Column("status", String(20), nullable=False, index=True),
    Column("device", String(100), nullable=False),
    Column("body", Text, nullable=False),
)


class Store:
    """The records at ``url`` (any SQLAlchemy URL; the data folder's SQLite file by default)."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or f"sqlite:///{home() / 'records.sqlite'}"
        try:
            # Writers wait for each other instead of failing at once.
            options = {"timeout": 30} if self.url.startswith("sqlite") else {}
            self._engine = create_engine(self.url, connect_args=options)
            _METADATA.create_all(self._engine)
        except (SQLAlchemyError, ImportError) as error:
            raise UsageError(f"cannot open the record store {self.url!r}: {error}") from error

    def add(self, record: Record) -> None:
        """Keep ``record``; one that is there already stays."""
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
                connection.execute(_RECORDS.insert(), row)
        except IntegrityError:
            # Two writers of one record: the other was first. Anything else is not this error.
            if not self._bodies(select(_RECORDS.c.body).where(_RECORDS.c.id == record.id)):
                raise

    def latest(self, count: int = 50, problem: str | None = None) -> list[Record]:
        """The newest ``count`` records, newest first."""
        query = select(_RECORDS.c.body).order_by(_RECORDS.c.created.desc()).limit(count)
        if problem is not None:
            query = query.where(_RECORDS.c.problem == problem)
        return [Record.model_validate_json(body) for body in self._bodies(query)]

    def passing(self, problem: str) -> list[Record]:
        """All records of candidates of ``problem`` that passed."""
        query = select(_RECORDS.c.body).where(
            _RECORDS.c.problem == problem, _RECORDS.c.status == "pass"
        )
        return [Record.model_validate_json(body) for body in self._bodies(query)]

    def get(self, record_id: str) -> Record:
        """The record whose id begins with ``record_id``. Raises UsageError if it is not one."""
        bodies = self._bodies(
            select(_RECORDS.c.body).where(_RECORDS.c.id.startswith(record_id)).limit(2)
        )
        if len(bodies) != 1:
            what = "no record" if not bodies else "more than one record"
            raise UsageError(f"{what} begins with {record_id!r} in {self.url}")
        return Record.model_validate_json(bodies[0])

    def _bodies(self, query: Select[tuple[str]]) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.scalars(query))


def write_json(records: Sequence[Record], path: Path) -> None:
    """Export ``records`` as a JSON list."""
    body = ",\n".join(record.model_dump_json(indent=1) for record in records)
    path.write_text(f"[{body}]\n")


def read_json(path: Path) -> list[Record]:
    """Records of a file that `write_json` or ``--json`` wrote. Raises UsageError if it is none."""
    import json

    from pydantic import ValidationError

    try:
        data = json.loads(path.read_text())
        if isinstance(data, dict) and "records" in data:
            data = data["records"]
        items = data if isinstance(data, list) else [data]
        # `--json` repeats these two at the top for tools; they are not fields of a record.
        plain = [{k: v for k, v in item.items() if k not in ("status", "checks")} for item in items]
        return [Record.model_validate(item) for item in plain]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, AttributeError, ValidationError) as error:
        text = str(error).splitlines()[0]
        raise UsageError(f"{path} holds no kernelproof records: {text}") from error
