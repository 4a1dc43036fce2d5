"""Open a database at this kernelproof's schema: made new, or brought up to it.

A new database gets its tables at once; only an older one needs alembic, which takes longer to
import than most commands to run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, insert, inspect, select, text
from sqlalchemy.exc import SQLAlchemyError

from kernelproof.errors import UsageError
from kernelproof.store.schema import METADATA, VERSION

# The newest step in migrations/versions.
HEAD = "0003"
_KNOWN = ("0001", "0002", HEAD)
# Databases of before there were versions have this table.
_FIRST_TABLE, _FIRST = "records", "0001"
# Any number, the same for all: processes that open a new database wait for each other.
_LOCK = 0x6B70726F


def engine_of(url: str) -> Engine:
    """The database at ``url`` with its tables.

    Raises:
        UsageError: it cannot be opened, or a newer kernelproof made it.
    """
    # Writers wait for each other instead of failing at once.
    options: dict[str, Any] = {"timeout": 30} if url.startswith("sqlite") else {}
    if url.startswith("postgres"):
        # A database without an encoding would give bytes.
        options["client_encoding"] = "utf8"
    try:
        engine = create_engine(_with_driver(url), connect_args=options)
        with engine.connect() as connection:
            found = _version(connection)
        if found != HEAD:
            with engine.connect() as connection:
                _bring_up(connection)
                connection.commit()
    except (SQLAlchemyError, ImportError) as error:
        hint = "--store or KERNELPROOF_STORE names another, such as sqlite:///records.sqlite"
        if isinstance(error, ImportError):
            hint = "for PostgreSQL: pip install 'kernelproof[postgres]'"
        why = str(error).partition("\n")[0]
        raise UsageError(f"cannot open the record store {shown(url)!r}: {why}; {hint}") from error
    return engine


def migrate(connection: Connection, since: str | None, until: str = HEAD) -> None:
    """Carry out the steps after ``since`` (None: all) up to ``until``."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    if since is not None and _version(connection) is None:
        command.stamp(config, since)
    command.upgrade(config, until)


def _bring_up(connection: Connection) -> None:
    """Under a lock that ends with the transaction."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    elif connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    # Somebody else may have been first.
    found = _version(connection)
    if found == HEAD:
        return
    if found is not None and found not in _KNOWN:
        raise UsageError(
            f"the record store was made by a newer kernelproof (schema {found}; this one has "
            f"{HEAD}); upgrade kernelproof, or give another store"
        )
    if found is None and not inspect(connection).has_table(_FIRST_TABLE):
        METADATA.create_all(connection)
        connection.execute(insert(VERSION), {"version_num": HEAD})
    else:
        migrate(connection, found or _FIRST)


def _version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION.name):
        return None
    return connection.scalar(select(VERSION.c.version_num))


def _with_driver(url: str) -> str:
    """PostgreSQL by psycopg, whichever driver SQLAlchemy would take by itself."""
    for prefix in ("postgresql://", "postgres://"):
        if url.startswith(prefix):
            return f"postgresql+psycopg://{url.removeprefix(prefix)}"
    return url


def shown(url: str) -> str:
    """``url`` without its password."""
    from sqlalchemy.engine import make_url

    try:
        return make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url
