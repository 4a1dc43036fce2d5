"""The tables, as they are now; older ones are in `migrations`."""

from __future__ import annotations

from sqlalchemy import Column, DateTime, ForeignKey, Integer, MetaData, String, Table, Text

from kernelproof.home import home, store_url

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
# A suite judged once, and the result of each of its items. ``record`` is "" where there is none.
SUITE_RUNS = Table(
    "suite_runs",
    METADATA,
    Column("id", String(40), primary_key=True),
    Column("created", DateTime(timezone=True), nullable=False, index=True),
    Column("suite", String(200), nullable=False),
    Column("body", Text, nullable=False),
)
SUITE_RESULTS = Table(
    "suite_results",
    METADATA,
    Column("run", String(40), ForeignKey("suite_runs.id"), primary_key=True),
    Column("item", String(400), primary_key=True),
    Column("digest", String(40), nullable=False),
    Column("status", String(20), nullable=False),
    Column("device", String(200), nullable=False),
    Column("record", String(40), nullable=False),
    Column("body", Text, nullable=False),
)


# Of alembic; what it holds is `upgrade.HEAD`.
VERSION = Table("alembic_version", METADATA, Column("version_num", String(32), primary_key=True))


def default_url() -> str:
    """``$KERNELPROOF_STORE``, else the SQLite file of the data folder."""
    return store_url() or f"sqlite:///{home() / 'records.sqlite'}"
