"""Stage 7: records in a database through SQLAlchemy; SQLite in the data folder by default."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import DateTime, String, Text, create_engine, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from kernelproof.errors import UsageError
from kernelproof.home import home
from kernelproof.types import Record


class _Base(DeclarativeBase):
    pass


class _Row(_Base):
    """A record: what is searched for as columns, the whole as JSON."""

    __tablename__ = "records"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    created: Mapped[datetime.datetime] = mapped_column(DateTime(timezone=True), index=True)
    problem: Mapped[str] = mapped_column(String(200), index=True)
    candidate: Mapped[str] = mapped_column(String(200))
    digest: Mapped[str] = mapped_column(String(40), index=True)
    status: Mapped[str] = mapped_column(String(20), index=True)
    device: Mapped[str] = mapped_column(String(100))
    body: Mapped[str] = mapped_column(Text)


class Store:
    """The records at ``url`` (any SQLAlchemy URL; the data folder's SQLite file by default)."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url or f"sqlite:///{home() / 'records.sqlite'}"
        try:
            # Writers wait for each other instead of failing at once.
            options = {"timeout": 30} if self.url.startswith("sqlite") else {}
            self._engine = create_engine(self.url, connect_args=options)
            _Base.metadata.create_all(self._engine)
        except (SQLAlchemyError, ImportError) as error:
            raise UsageError(f"cannot open the record store {self.url!r}: {error}") from error

    def add(self, record: Record) -> None:
        """Keep ``record``; one that is there already stays."""
        row = _Row(
            id=record.id,
            created=record.created,
            problem=record.problem.name,
            candidate=record.candidate.name,
            digest=record.candidate.digest,
            status=record.status,
            device=record.environment.gpu or record.environment.cpu,
            body=record.model_dump_json(),
        )
        with Session(self._engine) as session:
            session.merge(row)
            session.commit()

    def latest(self, count: int = 50, problem: str | None = None) -> list[Record]:
        """The newest ``count`` records, newest first."""
        query = select(_Row).order_by(_Row.created.desc()).limit(count)
        if problem is not None:
            query = query.where(_Row.problem == problem)
        with Session(self._engine) as session:
            return [Record.model_validate_json(row.body) for row in session.scalars(query)]

    def passing(self, problem: str) -> list[Record]:
        """All records of candidates of ``problem`` that passed."""
        query = select(_Row).where(_Row.problem == problem, _Row.status == "pass")
        with Session(self._engine) as session:
            return [Record.model_validate_json(row.body) for row in session.scalars(query)]

    def get(self, record_id: str) -> Record:
        """The record whose id begins with ``record_id``. Raises UsageError if it is not one."""
        query = select(_Row).where(_Row.id.startswith(record_id)).limit(2)
        with Session(self._engine) as session:
            rows = list(session.scalars(query))
            if len(rows) != 1:
                what = "no record" if not rows else "more than one record"
                raise UsageError(f"{what} begins with {record_id!r} in {self.url}")
            return Record.model_validate_json(rows[0].body)


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
