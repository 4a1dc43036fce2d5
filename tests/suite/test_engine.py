"""What becomes of items whose worker dies, hangs, errs or goes away; and of a run without any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_types import record

from kernelproof.errors import KernelproofError, UsageError
from kernelproof.suite import engine
from kernelproof.suite.judging import Late, Lost
from kernelproof.suite.model import Item, Suite
from kernelproof.types import SuiteResult


class Hand:
    """A worker that does what it is told for each item."""

    def __init__(self, name: str, does: Callable[[str], Any]) -> None:
        self.name = name
        self.does = does
        self.closed = False

    def judge(self, item: Item) -> dict[str, Any]:
        done = self.does(item.name)
        if isinstance(done, Exception):
            raise done
        return {"record": record("pass", False).model_dump_json(), "seconds": 1.0, "device": "x"}

    def close(self) -> None:
        self.closed = True


class Hands:
    def __init__(self, *groups: list[Hand], patience: float = 0.0, builders: int = 0) -> None:
        self.groups = list(groups)
        self.patience = patience
        self.builders = builders
        self.built: list[str] = []

    def slots(self) -> list[Hand]:
        return self.groups.pop(0) if self.groups else []

    def build(self, item: Item) -> None:
        self.built.append(item.name)
        raise RuntimeError("what fails here is for the judge to tell")

    def close(self) -> None:
        pass


@pytest.fixture
def items(tmp_path: Path) -> list[Item]:
    found = []
    for name in "abcd":
        path = tmp_path / f"{name}.py"
        path.write_text(f"class ModelNew: {name} = 1\n")
        found.append(Item(path, path, name))
    return found


def carried_out(items: list[Item], crew: Hands) -> dict[str, SuiteResult]:
    found: dict[str, SuiteResult] = {}

    def keep(result: SuiteResult, kept: Any) -> None:
        assert result.item not in found
        assert (kept is None) == (result.record_id == "")
        found[result.item] = result

    engine.run(items, crew, keep)
    return found


def test_each_trouble_costs_one_item_and_says_so(items: list[Item]) -> None:
    seen: list[str] = []

    def does(name: str) -> Any:
        seen.append(name)
        once = seen.count(name) == 1
        return {
            "a": Lost("killed by signal 9") if once else None,
            "b": Late("no answer within 5 s"),
            "c": KernelproofError("CUDA error: an illegal address") if once else None,
            "d": UsageError("no such option"),
        }[name]

    hand = Hand("h", does)
    found = carried_out(items, Hands([hand]))
    told = {name: (r.status, r.attempts) for name, r in found.items()}
    assert told == {
        "a": ("pass", 2), "b": ("timeout", 1), "c": ("pass", 2), "d": ("unsupported", 1),
    }  # fmt: skip
    assert "no answer within 5 s" in found["b"].message and found["d"].message == "no such option"
    assert hand.closed


def test_what_always_fails_is_given_up(items: list[Item]) -> None:
    def does(name: str) -> Any:
        return {"a": Lost("killed by signal 11"), "b": KernelproofError("ours")}.get(name)

    found = carried_out(items, Hands([Hand("h", does)]))
    assert (found["a"].status, found["a"].attempts) == ("lost", 4)
    assert "lost 3 times" in found["a"].message and "signal 11" in found["a"].message
    assert (found["b"].status, found["c"].status) == ("fault", "pass")
    assert found["b"].message == "an error of kernelproof: ours"


def test_a_worker_that_goes_away_is_replaced_by_one_that_comes(items: list[Item]) -> None:
    first = Hand("first", lambda name: engine.Gone("its machine is gone") if name == "b" else None)
    found = carried_out(items, Hands([first], [], [Hand("second", lambda name: None)], patience=9))
    assert {r.status for r in found.values()} == {"pass"}
    assert found["a"].place == "first" and found["d"].place == "second"
    assert found["b"].attempts == 2


def test_without_workers_a_run_ends_and_keeps_what_it_has(items: list[Item]) -> None:
    found = []
    gone = Hand("h", lambda name: engine.Gone("gone") if name == "c" else None)
    with pytest.raises(KernelproofError, match="no worker is left"):
        engine.run(items, Hands([gone]), lambda result, kept: found.append(result.item))
    assert found == ["a", "b"]


def test_an_error_in_keeping_ends_the_run(items: list[Item]) -> None:
    def keep(result: SuiteResult, kept: Any) -> None:
        raise OSError("the disk is full")

    hands = [Hand("1", lambda name: None), Hand("2", lambda name: None)]
    with pytest.raises(OSError, match="disk is full"):
        engine.run(items, Hands(hands), keep)
    assert all(hand.closed for hand in hands)


def test_what_must_be_compiled_waits_for_its_build(items: list[Item], tmp_path: Path) -> None:
    compiled = tmp_path / "compiled.py"
    compiled.write_text("from kernelproof.build import torch_op\nop = torch_op('n', [])\n")
    order: list[str] = []
    crew = Hands(builders=1)
    others, lock = threading.Event(), threading.Event()
    plain = crew.build

    def build(item: Item) -> None:
        others.wait(30)
        lock.set()
        plain(item)

    def does(name: str) -> None:
        order.append(name)
        if len(order) == 4:
            others.set()
        assert name != "first" or lock.is_set()

    crew.build = build  # type: ignore[method-assign]
    crew.groups = [[Hand("h", does)]]
    found = carried_out([Item(compiled, compiled, "first"), *items], crew)
    assert order == ["a", "b", "c", "d", "first"] and crew.built == ["first"]
    assert {r.status for r in found.values()} == {"pass"}


def test_files_that_change_while_they_are_judged_give_no_verdict(items: list[Item]) -> None:
    def does(name: str) -> None:
        if name == "a":
            items[0].problem.write_text("class ModelNew: other = 1\n")
        if name == "b":
            items[1].problem.unlink()

    found = carried_out(items, Hands([Hand("h", does)]))
    assert [found[n].status for n in "abcd"] == ["fault", "unsupported", "pass", "pass"]


def test_a_problem_without_a_candidate_is_missing(items: list[Item]) -> None:
    found = carried_out([Item(items[0].problem, None, "x")], Hands([Hand("h", lambda n: None)]))
    assert (found["x"].status, found["x"].attempts) == ("missing", 0)


def test_two_items_with_one_name_are_refused(items: list[Item]) -> None:
    with pytest.raises(UsageError, match="two items with the name 'a'"):
        Suite("s", "folder", [items[0], items[0]])


def test_the_digest_is_of_files_and_options(items: list[Item]) -> None:
    a = items[0]
    other = Item(a.problem, a.candidate, "another name")
    assert a.digest() == other.digest()
    assert a.digest() != Item(a.problem, a.candidate, "a", options={"cases": ["x"]}).digest()
    assert a.digest() != Item(a.problem, None, "a").digest()
    before = a.digest()
    a.problem.write_text("class ModelNew: changed = 1\n")
    assert a.digest() != before
