"""The course of a check, with a subject that runs in this process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof import problem
from kernelproof.check import Plan, check
from kernelproof.check.expected import mean_response
from kernelproof.errors import CandidateCrash, ProblemError


class Local:
    """A subject whose facts the test can bend."""

    def __init__(self, function, **facts) -> None:
        self.function = function
        self.facts = facts
        self.calls = 0

    def construct(self, args, kwargs, seed, state) -> None:
        self.state = state

    def call(self, inputs, seed, poison, repeats):
        runs = []
        for index in range(repeats):
            self.calls += 1
            facts = {"mutated": [], "views_input": [], "reused": [], "devices": ["cpu"]}
            runs.append({"output": self.function(*inputs, call=index), **facts, **self.facts})
        return runs


@pytest.fixture
def reference(tmp_path: Path):
    path = tmp_path / "double.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x * 2.5\n"
        "def get_inputs(n=6): return [torch.randn(4, n)]\n"
        "CASES = {'default': {}, 'wide': {'n': 100}, 'empty': {'n': 0}}\n"
        "MISTAKES = {'the factor is two': lambda x: x * 2}\n"
    )
    return problem.load(path)


def judged(reference, function, plan: Plan | None = None, **facts):
    return check(reference, Local(function, **facts), plan or Plan(seeds=(1, 2, 3)))


def right(x, call):
    return x * 2.5


def test_all_cases_and_seeds_are_run(reference) -> None:
    verdict = judged(reference, right)
    assert verdict.status == "pass" and verdict.proof and verdict.compat
    assert [(r.case, r.seed) for r in verdict.runs] == [
        ("default", 1), ("default", 2), ("default", 3), ("wide", 1), ("wide", 2),
        ("empty", 1), ("empty", 2),
    ]  # fmt: skip
    assert {c.name: c.outcome for c in verdict.checks} == {
        "inputs unchanged": "pass",
        "no write outside inputs": "pass",
        "outputs are new": "pass",
        "outputs do not overlap": "pass",
        "outputs on the inputs' device": "pass",
        "repeatable": "pass",
        "error structure": "pass",
    }


def test_it_stops_at_the_first_failure_and_names_the_slip(reference) -> None:
    verdict = judged(reference, lambda x, call: x * 2)
    assert verdict.status == "wrong" and len(verdict.runs) == 1
    assert "0.8 times the expected value" in verdict.message
    assert "It looks as if the factor is two" in verdict.message
    assert verdict.message.endswith(". Smallest failing case: n=1")
    assert verdict.smallest is not None and verdict.smallest.sizes == {"n": 1}
    assert verdict.failing is not None
    assert (verdict.failing.name, verdict.failing.seed) == ("default", 1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mutated": [0]}, "input [0] was changed"),
        ({"overrun": [[0, "1 element(s) past its end"]]}, "outside input 0 (1 element(s) past its"),
        ({"views_input": [[0, 0]]}, "shares memory with an input"),
        ({"reused": [[0, 0]]}, "shares memory with the output of an earlier call"),
        ({"overlaps": [[0, 0]]}, "output 0 has several elements in one place"),
        ({"overlaps": [[0, 1]]}, "outputs 0 and 1 are in the same memory"),
        ({"devices": ["cuda:0"]}, "an output is on cuda:0, the inputs are on cpu"),
    ],
)
def test_guards_fail_a_candidate_whose_values_are_right(reference, facts, words: str) -> None:
    verdict = judged(reference, right, **facts)
    assert verdict.status == "wrong" and words in verdict.message
    assert [c.outcome for c in verdict.checks].count("fail") == 1


def test_a_result_that_depends_on_old_memory_fails(reference) -> None:
    verdict = judged(reference, lambda x, call: x * 2.5 + (call == 1))
    assert verdict.status == "wrong"
    assert "depends on memory that the kernel did not write" in verdict.message


def test_a_difference_between_runs_is_a_note(reference) -> None:
    verdict = judged(reference, lambda x, call: x * 2.5 * (1 + 1e-8 * 6 * (call == 2)))
    assert verdict.status == "pass"
    (note,) = [c for c in verdict.checks if c.outcome == "note"]
    assert note.name == "repeatable" and "differ bitwise" in note.message


@pytest.mark.parametrize("output", [lambda y: (y,), lambda y: {"y": y}, lambda y: None])
def test_another_structure_is_wrong(reference, output) -> None:
    verdict = judged(reference, lambda x, call: output(x * 2.5))
    assert verdict.status == "wrong"
    assert "returns" in verdict.message or "is a NoneType" in verdict.message


def test_an_error_of_the_candidate_becomes_the_verdict(reference) -> None:
    def crash(x, call):
        if x.shape[1] == 100:
            raise CandidateCrash("it died", "its log")
        return x * 2.5

    verdict = judged(reference, crash)
    assert (verdict.status, verdict.message, verdict.detail) == ("crash", "it died", "its log")
    assert len(verdict.runs) == 3 and not verdict.proof


def test_large_cases_are_left_out_and_that_is_said(reference) -> None:
    plan = Plan(seeds=(1,), max_bytes=200)
    verdict = judged(reference, right, plan)
    assert verdict.status == "pass" and {r.case for r in verdict.runs} == {"default", "empty"}
    (skip,) = [c for c in verdict.checks if c.outcome == "skip"]
    assert skip.name == "case wide" and "1600 bytes" in skip.message
    nothing = judged(reference, right, Plan(seeds=(1,), max_bytes=-1))
    assert nothing.status == "unsupported" and "no case could be run" in nothing.message


def test_a_failing_reference_is_a_problem_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x @ x\n"
        "def get_inputs(): return [torch.ones(2, 3)]\n"
    )
    with pytest.raises(ProblemError, match="fails on case 'default': RuntimeError"):
        judged(problem.load(path), right)


def test_a_row_that_hangs_on_one_number_does_not_fail_an_honest_kernel(tmp_path: Path) -> None:
    """Each row is one dot product times a vector: its error is a single draw, and so is the
    reference's. Over many seeds one of them is close to exact by chance."""
    path = tmp_path / "rank_one.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x, a, b): return (x @ a) @ b\n"
        "def get_inputs(): return [torch.randn(10, 256), torch.randn(256, 1), torch.randn(1, 64)]\n"
    )

    def serial(x, a, b, call):
        latent = torch.zeros(10, 1)
        for m in range(256):
            latent = latent + x[:, m : m + 1] * a[m]
        return latent * b

    verdict = judged(problem.load(path), serial, Plan(seeds=tuple(range(150))))
    assert verdict.status == "pass", verdict.message


def test_the_mean_response_ignores_what_is_no_number() -> None:
    changes = [torch.tensor([3.0, float("nan")]), torch.tensor([4.0, 1.0])]
    assert torch.allclose(mean_response(changes), torch.tensor([12.5, 0.5]).sqrt())
    assert mean_response([torch.tensor([3 + 4j])]).tolist() == [3 + 4j]
