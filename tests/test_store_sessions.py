"""Many processes at one session's budget and at sessions of their own: nothing lost or mixed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from kernelproof.errors import UsageError
from kernelproof.store import Sessions

PROCESSES, CALLS, SHARED_BUDGET = 8, 20, 100


def open_one(kept: Sessions, name: str, budget: int = CALLS) -> None:
    kept.create(name, "problem", budget, None, "{}")


def _work(arguments: tuple[str, int]) -> list[int]:
    """Twenty calls of an own session, each followed by one of the session that all share."""
    url, worker = arguments
    kept, own = Sessions(url), f"own-{worker}"
    open_one(kept, own)
    got = []
    for step in range(CALLS):
        text = f"source {worker} {step % 3}"
        number = kept.begin(own, "check", 1, "me", f"c{worker}", "d", text)
        assert number == step + 1
        kept.finish(own, number, f"answer {worker} {step}")
        shared = kept.begin("shared", "check", 1, "me", f"c{worker}", "d", "the same for all")
        if shared is not None:
            kept.finish("shared", shared, f"answer {worker}")
            got.append(shared)
    return got


def _submit(url: str) -> bool:
    return Sessions(url).begin("shared", "submit", 0, "me", "c", "d", "x") is not None


def hammered(url: str) -> None:
    """Let eight processes at it and look at what is there afterwards."""
    kept = Sessions(url)
    open_one(kept, "shared", SHARED_BUDGET)
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        found = pool.map(_work, [(url, n) for n in range(PROCESSES)], chunksize=1)
        submitted = pool.map(_submit, [url] * PROCESSES, chunksize=1)
    taken = sorted(number for part in found for number in part)
    assert taken == list(range(1, SHARED_BUDGET + 1)) and sum(submitted) == 1
    row = kept.get("shared")
    assert (row.used, row.state) == (SHARED_BUDGET, "submitting")
    assert len(kept.calls("shared")) == SHARED_BUDGET + 1
    for worker in range(PROCESSES):
        calls = kept.calls(f"own-{worker}")
        assert [c.body for c in calls] == [f"answer {worker} {step}" for step in range(CALLS)]
        assert [kept.sources(c.sources) for c in calls] == [
            f"source {worker} {step % 3}" for step in range(CALLS)
        ]
        assert kept.get(f"own-{worker}").used == CALLS


def test_eight_processes_lose_and_mix_nothing(tmp_path: Path) -> None:
    hammered(f"sqlite:///{tmp_path / 's.sqlite'}")


@pytest.fixture
def kept(tmp_path: Path) -> Sessions:
    return Sessions(f"sqlite:///{tmp_path / 's.sqlite'}")


def begin(kept: Sessions, what: str = "check", cost: int = 1) -> int | None:
    return kept.begin("one", what, cost, "me", "c", "d", "text")


def test_a_call_must_fit_into_what_is_left(kept: Sessions) -> None:
    open_one(kept, "one", 3)
    assert begin(kept, cost=2) == 1
    assert begin(kept, cost=2) is None and begin(kept) == 2 and begin(kept) is None
    assert begin(kept, "submit", 0) == 3 and begin(kept, "submit", 0) is None


def test_a_call_ends_once(kept: Sessions) -> None:
    open_one(kept, "one", 3)
    number = begin(kept)
    assert number is not None
    kept.lose("one", number)
    kept.refund("one", number, "late")
    kept.finish("one", number, "late")
    (call,) = kept.calls("one")
    assert (call.state, call.body) == ("lost", "") and kept.get("one").used == 1


def test_a_lost_submission_can_be_made_again(kept: Sessions) -> None:
    open_one(kept, "one")
    for end in (lambda n: kept.lose("one", n), lambda n: kept.refund("one", n, "why")):
        number = begin(kept, "submit", 0)
        assert number is not None and begin(kept) is None
        end(number)
        assert kept.get("one").state == "open" and kept.get("one").used == 0
    number = begin(kept, "submit", 0)
    assert number is not None
    kept.finish("one", number, "answer")
    assert kept.get("one").state == "closed" and begin(kept) is None


def test_ids_are_prefixes_and_no_patterns(kept: Sessions) -> None:
    open_one(kept, "abc")
    open_one(kept, "abd")
    assert kept.get("abc").id == "abc"
    for text, words in (("ab", "more than one"), ("%", "no session"), ("", "more than one")):
        with pytest.raises(UsageError, match=words):
            kept.get(text)
    assert {row.id for row in kept.latest(5)} == {"abc", "abd"}
    assert {row.id for row in kept.of_problem("problem", 5)} == {"abc", "abd"}
    assert kept.of_problem("other", 5) == []
