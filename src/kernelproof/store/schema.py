"""The tables, and how a database is opened."""

from __future__ import annotations

from sqlalchemy import (
    Column,
    DateTime,
    Engine,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
)
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError, SQLAlchemyError

from kernelproof.errors import UsageError
from kernelproof.home import home

# Tables rather than mapped classes: importing the mapper takes half as long as a quick check.
METADATA = MetaData()
# What is searched for as columns, the whole record as JSON.
RECORDS = Table(
    "records",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("problem", String(200), nullable=False, index=True),
    Column("candidate", String(200), nullable=False),
    Column("digest", String(40), nullable=False, index=True),
    Column("status", String(20), nullable=False, index=True),
    Column("device", String(100), nullable=False),
    Column("body", Text, nullable=False),
)
# A series of attempts. What is counted and decided under concurrency are columns.
SESSIONS = Table(
    "sessions",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("problem", String(200), nullable=False),
    Column("state", String(20), nullable=False),
    Column("budget", Integer, nullable=False),
    Column("used", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("ends", DateTime(timezone=True), nullable=True),
    Column("body", Text, nullable=False),
)
CALLS = Table(
    "calls",
    METADATA,
    Column("session", String(40), ForeignKey("sessions.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("what", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("cost", Integer, nullable=False),
    Column("started", DateTime(timezone=True), nullable=False),
    Column("ended", DateTime(timezone=True), nullable=True),
    Column("holder", String(200), nullable=False),
    Column("candidate", String(200), nullable=False),
    Column("digest", String(40), nullable=False),
    Column("sources", String(64), ForeignKey("sources.id"), nullable=False),
    Column("body", Text, nullable=False),
)
# Files of candidates, once each.
SOURCES = Table(
    "sources",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("body", Text, nullable=False),
)


def default_url() -> str:
    """The SQLite file of the data folder."""
    return f"sqlite:///{home() / 'records.sqlite'}"


def engine_of(url: str) -> Engine:
    """The database at ``url`` with its tables. Raises UsageError where it cannot be opened."""
    # Writers wait for each other instead of failing at once.
    options = {"timeout": 30} if url.startswith("sqlite") else {}
    try:
        engine = create_engine(url, connect_args=options)
        try:
            METADATA.create_all(engine)
        except (OperationalError, ProgrammingError, IntegrityError):
            # Another process makes them at the same moment, or the error stays.
            METADATA.create_all(engine)
    except (SQLAlchemyError, ImportError) as error:
        raise UsageError(f"cannot open the record store {url!r}: {error}") from error
    return engine
