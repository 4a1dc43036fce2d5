"""A store is made new, brought up to date, or refused: in SQLite and on a PostgreSQL server."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest
import test_store
import test_store_sessions
import test_store_suites
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, insert, text

from kernelproof.errors import UsageError
from kernelproof.home import STORE_VARIABLE
from kernelproof.store import Sessions, Store
from kernelproof.store.schema import METADATA, RECORDS, VERSION
from kernelproof.store.upgrade import HEAD, engine_of, migrate, shown


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    programs = postgres.binaries()
    if programs is None:
        if os.environ.get("CI"):
            pytest.fail("CI has no PostgreSQL server: install the package postgresql")
        pytest.skip("no PostgreSQL server here (looked in /usr/lib/postgresql and on the PATH)")
    with postgres.server(programs) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 's.sqlite'}"
    served = str(request.getfixturevalue("served"))
    name = f"t{abs(hash(request.node.name)):x}"
    with _plain(served).connect() as connection:
        free = connection.execution_options(isolation_level="AUTOCOMMIT")
        free.execute(text(f"DROP DATABASE IF EXISTS {name}"))
        free.execute(text(f"CREATE DATABASE {name}"))
    return served.rpartition("/")[0] + f"/{name}"


def _plain(url: str):
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


def test_the_steps_lead_to_what_is_made_new(url: str) -> None:
    with _plain(url).connect() as connection:
        migrate(connection, None)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []


def test_an_older_store_keeps_its_records(url: str) -> None:
    """As kernelproof made them before there were versions."""
    old = test_store.numbered(7)
    with _plain(url).connect() as connection:
        migrate(connection, None, "0001")
        VERSION.drop(connection)
        row = dict(
            id=old.id, created=old.created, problem=old.problem.name, candidate="c", digest="d",
            status=old.status, device="x", body=old.model_dump_json(),
        )  # fmt: skip
        connection.execute(insert(RECORDS), row)
        connection.commit()
    assert Store(url).latest() == [old]
    test_store_sessions.open_one(Sessions(url), "one")
    with engine_of(url).connect() as connection:
        assert connection.scalar(text("SELECT version_num FROM alembic_version")) == HEAD


def test_a_newer_store_is_refused(url: str) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(UsageError, match="made by a newer kernelproof"):
        Store(url)


def _open(url: str) -> int:
    return len(Sessions(url).latest(9))


def test_many_open_a_new_store_at_once(url: str) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        assert pool.map(_open, [url] * 4, chunksize=1) == [0] * 4


def test_records_and_sessions_on_a_server(served: str, monkeypatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, served)
    store = Store()
    for i in range(3):
        store.add(test_store.numbered(i))
    store.add(test_store.numbered(1))
    assert [r.id for r in store.latest(2)] == ["0002", "0001"]
    assert store.get("0000").created.utcoffset() is not None
    assert "secret" not in store.url and store.url == shown(served)
    with pytest.raises(
        UsageError, match=r"no session begins with 'x' in postgresql://tester:\*\*\*"
    ):
        Sessions().get("x")


def test_eight_processes_on_a_server(url: str, request: pytest.FixtureRequest) -> None:
    if url.startswith("sqlite"):
        return  # test_store_sessions has this
    test_store_sessions.hammered(url)


def test_runs_of_suites_on_a_server(url: str) -> None:
    test_store_suites.kept(url)


def test_candidates_do_not_get_the_url(monkeypatch) -> None:
    from kernelproof.worker import client

    monkeypatch.setenv(STORE_VARIABLE, "postgresql://me:secret@host/records")
    assert STORE_VARIABLE not in client._environment()


def test_a_missing_driver_says_what_to_install(monkeypatch) -> None:
    import builtins

    real = builtins.__import__

    def lacking(name: str, *rest):
        if name.startswith("psycopg"):
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(UsageError, match=r"pip install 'kernelproof\[postgres\]'"):
        Store("postgresql://nowhere/none")
