"""Runs of suites in a database."""

from __future__ import annotations

import datetime
import multiprocessing
from pathlib import Path

import pytest

from kernelproof.errors import UsageError
from kernelproof.store import Suites
from kernelproof.types import SuiteResult, SuiteRun


def run(name: str, second: int = 0) -> SuiteRun:
    created = datetime.datetime(2026, 1, 1, 0, 0, second, tzinfo=datetime.timezone.utc)
    return SuiteRun(
        id=name, created=created, suite="s", format="folder", path="/s", candidates="/c",
        level=None, timed=False, options={"seeds": 2, "cases": ["a"]}, count=9,
    )  # fmt: skip


def result(item: str, status: str = "pass") -> SuiteResult:
    return SuiteResult(
        item=item, category="", problem="/p", sample=0, digest="d", status=status, device="x"
    )  # type: ignore[arg-type]


def kept(url: str) -> None:
    """What is put comes back, the newest in the place of an earlier one."""
    store = Suites(url)
    store.create(run("ab1"))
    store.create(run("ab2", 1))
    assert store.latest(9) == [(run("ab2", 1), 0), (run("ab1"), 0)]
    store.put("ab1", result("b", "lost"))
    store.put("ab1", result("a"))
    store.put("ab1", result("b", "wrong"))
    assert store.results("ab1") == [result("a"), result("b", "wrong")]
    assert store.results("ab2") == []
    assert store.latest(1) == [(run("ab2", 1), 0)] and store.latest(2)[1] == (run("ab1"), 2)
    assert store.get("ab1") == run("ab1")
    for text, words in (("ab", "more than one run"), ("x", "no run"), ("", "run"), ("%", "no run")):
        with pytest.raises(UsageError, match=words):
            store.get(text)


def test_runs_and_results_come_back(tmp_path: Path) -> None:
    kept(f"sqlite:///{tmp_path / 's.sqlite'}")


def _put(arguments: tuple[str, int]) -> None:
    url, start = arguments
    store = Suites(url)
    for number in range(start, start + 10):
        store.put("r", result(f"{number:03d}"))
        store.put("r", result("one for all"))


def test_writers_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    Suites(url).create(run("r"))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        pool.map(_put, [(url, 10 * n) for n in range(3)])
    assert len(Suites(url).results("r")) == 31
