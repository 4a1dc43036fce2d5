"""Runs of suites in the browser."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from shop import EVIL
from starlette.testclient import TestClient

from kernelproof.serve import Access, application
from kernelproof.store import Suites
from kernelproof.types import SuiteResult, SuiteRun


@pytest.fixture
def pages(tmp_path: Path) -> Any:
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    run = SuiteRun(
        id="ab12", created=datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
        suite="nightly", format="folder", path="/s", candidates="/c", level=None, timed=False,
        options={}, count=3,
    )  # fmt: skip
    store = Suites(url)
    store.create(run)
    for item, status, message in (("one", "pass", ""), ("two", "wrong", EVIL)):
        store.put(
            run.id,
            SuiteResult(
                item=item, category="", problem="p", sample=0, digest="d", status=status,
                message=message, device="a gpu", record_id="beef" if status == "pass" else "",
            ),  # type: ignore[arg-type]
        )  # fmt: skip
    headers = {"accept": "text/html"}
    return TestClient(application(url, Access()), base_url="http://localhost", headers=headers)


def test_runs_and_one_of_them(pages: Any) -> None:
    every = pages.get("/suites").text
    assert 'href="/suites/ab12"' in every and "nightly" in every and "2 of 3" in every
    one = pages.get("/suites/ab12").text
    assert 'href="/records/beef"' in one and "a gpu" in one and "1 left:" in one
    assert EVIL not in one and "alert(" in one
    gone = pages.get("/suites/dead")
    assert gone.status_code == 404 and "no run of a suite begins with" in gone.text
    assert "/suites" in pages.get("/").text
