"""The search for the smallest failing case."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof import problem as problems
from kernelproof.check import smallest
from kernelproof.errors import CandidateCrash, ProblemError
from kernelproof.types import Case, Problem


def get_inputs(rows=40, seq=68, dtype="fp32", causal=True):
    raise AssertionError("sizes are known without it")


CASES = (
    Case(name="default"),
    Case(name="one", sizes={"rows": 1, "seq": 1}),
    Case(name="odd", sizes={"rows": 3, "seq": 33}),
    Case(name="large", sizes={"rows": 100, "seq": 1000}),
)
PROBLEM = Problem(name="p", path="p.py", digest="0", cases=CASES)


class Fails:
    def __init__(self, rule) -> None:
        self.rule = rule
        self.calls: list[dict] = []

    def __call__(self, case: Case) -> bool:
        sizes = {"rows": 40, "seq": 68} | case.sizes
        self.calls.append(sizes)
        return self.rule(**{k: sizes[k] for k in ("rows", "seq")})


def found(rule, done=frozenset(), start=CASES[0]):
    fails = Fails(rule)
    return smallest.search(get_inputs, PROBLEM, start, fails, done), fails


def test_a_declared_case_that_is_smaller_is_taken_first() -> None:
    case, fails = found(lambda rows, seq: True)
    assert case == CASES[1] and len(fails.calls) == 1
    case, fails = found(lambda rows, seq: True, done=frozenset({"one"}))
    assert case is not None and (case.sizes["rows"], case.sizes["seq"]) == (1, 1)
    assert case.sizes["dtype"] == "fp32" and case.sizes["causal"] is True


def test_sizes_are_halved_together_and_then_apart() -> None:
    case, fails = found(lambda rows, seq: seq > 16)
    assert case is not None and (case.sizes["rows"], case.sizes["seq"]) == (1, 33)
    assert len(fails.calls) <= smallest.CALLS
    alone, _ = found(lambda rows, seq: seq > 40)
    assert alone is not None and (alone.sizes["rows"], alone.sizes["seq"]) == (1, 68)


def test_nothing_smaller_is_nothing() -> None:
    case, fails = found(lambda rows, seq: rows >= 40 and seq >= 68)
    assert case is None and 0 < len(fails.calls) <= smallest.CALLS
    assert all(c["rows"] * c["seq"] < 40 * 68 for c in fails.calls)


def test_calls_are_bounded() -> None:
    huge = Case(name="default", sizes={"rows": 2**30, "seq": 2**30})
    _, fails = found(lambda rows, seq: rows * seq >= 2**24, start=huge)
    assert len(fails.calls) == smallest.CALLS


def test_it_ends_when_the_candidate_breaks_and_keeps_what_it_has() -> None:
    def rule(rows, seq):
        if rows < 20:
            raise CandidateCrash("gone")
        return True

    case, fails = found(rule, done=frozenset({"one", "odd"}))
    assert case is not None and (case.sizes["rows"], case.sizes["seq"]) == (20, 34)
    assert len(fails.calls) == 2


def test_sizes_that_the_reference_refuses_are_no_calls() -> None:
    def rule(rows, seq):
        if rows % 4:
            raise ProblemError("rows must be a multiple of 4")
        return True

    case, _ = found(rule)
    assert case is not None and (case.sizes["rows"], case.sizes["seq"]) == (20, 1)


def test_without_size_arguments_nothing_is_tried() -> None:
    def fails(case):
        raise AssertionError

    case = Case(name="default")
    fixed = Problem(name="p", path="p.py", digest="0", cases=(case,))
    assert smallest.search(lambda: [], fixed, case, fails) is None


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(name="one", sizes={"rows": 1, "n": 2}), "one, rows=1, n=2"),
        (Case(name="smallest", sizes={"n": 3, "scale": 2.0}), "rows=4, n=3, scale=2.0"),
        (Case(name="smallest", sizes={"rows": 1, "n": 3, "scale": 1.0}), "rows=1, n=3"),
    ],
)
def test_the_words(tmp_path: Path, case: Case, words: str) -> None:
    path = tmp_path / "some.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x\n"
        "def get_inputs(rows=4, n=6, scale=1.0): return [torch.randn(rows, n)]\n"
    )
    assert smallest.describe(case, problems.load(path)) == f"Smallest failing case: {words}"
