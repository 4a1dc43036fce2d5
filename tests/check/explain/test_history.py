"""Words that need repeats, earlier runs or the inputs."""

from __future__ import annotations

import math

import pytest
import torch

from kernelproof.check.explain.history import History
from kernelproof.errors import CandidateCrash
from kernelproof.types import OutputVerdict, Run


def draw(seed: int) -> torch.Tensor:
    return torch.randn(12, 20, generator=torch.Generator().manual_seed(seed))


TRUTH, OLD = draw(1), draw(2)
INPUT = draw(3)


def run(status: str = "wrong", seed: int = 5) -> Run:
    output = OutputVerdict(
        name="output", shape=(12, 20), dtype="float32", passed=status == "pass", compat=False
    )
    return Run(case="default", seed=seed, status=status, outputs=(output,), message="it is off")


def told(outputs, history: History | None = None, inputs=INPUT, again=None) -> str:
    history = history or History()

    def never():
        raise AssertionError("asked for more calls")

    truths = [TRUTH.double()]
    found = history.explained(
        run(), [inputs], truths, [[o] for o in outputs], again or never
    )  # fmt: skip
    return found.message.removeprefix("it is off").removeprefix(". ")


def with_past() -> History:
    history = History()
    history.explained(run("pass", 4), [INPUT], [OLD.double()], [[OLD]], lambda: None)
    return history


def test_a_difference_between_calls_is_a_race_and_named_with_its_place() -> None:
    other = TRUTH.clone()
    other[:, 16:] += 1
    wrong = TRUTH + 0.5 * (torch.arange(20) >= 16)
    words = told([wrong, wrong, other])
    assert (
        "Two calls on the same inputs differ in 48 of 240 elements, only at index 16..19" in words
    )
    assert "a race" in words
    # Honest rounding differences beside a large error are no race.
    assert told([wrong, wrong, wrong + 1e-6]) == ""


def test_memory_that_is_not_written_is_told_from_a_computed_nan() -> None:
    hole = TRUTH.clone()
    hole[3] = math.nan
    rubbish = [TRUTH.index_fill(0, torch.tensor([3]), value) for value in (7.0, 9.0)]
    unwritten = told([hole, *rubbish])
    assert "were never written" in unwritten and "race" not in unwritten
    computed = told([hole, hole, hole])
    assert "so they are computed" in computed and "never written" not in computed


def test_an_answer_of_an_earlier_call_is_recognised() -> None:
    words = told([OLD] * 3, with_past())
    assert "right answer of an earlier call (case default, seed 4)" in words
    part = torch.where(torch.arange(20) < 7, OLD, TRUTH)
    assert "only at index 0..6 (of 20) of axis 1" in told([part] * 3, with_past())
    assert told([draw(9)] * 3, with_past()) == ""


def test_failing_only_for_large_inputs_is_said() -> None:
    words = told([TRUTH + 1] * 3, with_past(), inputs=INPUT * 300)
    assert "only for large values" in words and "where it passed at most" in words
    assert told([TRUTH + 1] * 3, with_past(), inputs=INPUT * 2) == ""
    assert told([TRUTH + 1] * 3, inputs=INPUT * 300) == ""


def test_more_calls_are_made_where_there_was_one() -> None:
    asked = []

    def again():
        asked.append(1)
        return [{"output": TRUTH + 1}, {"output": TRUTH + 3}]

    assert "Two calls" in told([TRUTH + 1], again=again) and asked == [1]

    def crash():
        raise CandidateCrash("gone")

    assert told([TRUTH + 1], again=crash) == ""


@pytest.mark.parametrize("got", [None, 3, TRUTH[:2], torch.empty(0), TRUTH.to(torch.complex64)])
def test_outputs_of_another_form_are_passed_over(got) -> None:
    assert told([got] * 3, with_past()) == ""


def test_a_run_that_passed_is_returned_as_it_is() -> None:
    passed = run("pass")
    assert History().explained(passed, [INPUT], [TRUTH], [[TRUTH]], lambda: None) == passed
