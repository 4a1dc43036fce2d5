"""Records in the database and as JSON."""

from __future__ import annotations

import datetime
import multiprocessing
from pathlib import Path

import pytest
from test_types import record

from kernelproof.errors import UsageError
from kernelproof.store import Store, json_text, read_json


def numbered(i: int):
    created = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    return record("pass", True).model_copy(
        update={"id": f"{i:04d}", "created": created + datetime.timedelta(seconds=i)}
    )


def test_records_come_back_newest_first(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'r.sqlite'}")
    for i in range(5):
        store.add(numbered(i))
    store.add(numbered(3))
    found = store.latest(3)
    assert [r.id for r in found] == ["0004", "0003", "0002"]
    assert found[0] == numbered(4)
    assert store.get("0001") == numbered(1)
    assert store.latest(problem="other") == []
    assert [row.id for row in store.index(2, numbered(0).problem.name)] == ["0004", "0003"]
    assert store.counts() == {numbered(0).problem.name: (5, 5)}


def test_an_unknown_or_ambiguous_id_is_said(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'r.sqlite'}")
    store.add(numbered(1))
    store.add(numbered(2))
    with pytest.raises(UsageError, match="no record"):
        store.get("9")
    with pytest.raises(UsageError, match="more than one"):
        store.get("000")


def test_a_store_that_cannot_be_opened_is_said() -> None:
    with pytest.raises(UsageError, match="cannot open"):
        Store("sqlite:////nonexistent/folder/r.sqlite")


def test_json_goes_out_and_in(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json_text([numbered(1), numbered(2)]))
    assert read_json(path) == [numbered(1), numbered(2)]
    path.write_text('{"a": 1}')
    with pytest.raises(UsageError, match="no kernelproof records"):
        read_json(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_json(tmp_path / "none.json")


def _write(arguments: tuple[str, int]) -> None:
    url, start = arguments
    store = Store(url)
    for i in range(start, start + 10):
        store.add(numbered(i))


def test_writers_do_not_lose_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'r.sqlite'}"
    Store(url)
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(_write, [(url, i * 10) for i in range(4)])
    assert len(Store(url).latest(100)) == 40
