"""Outputs of timed calls, judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from kernelproof import problem
from kernelproof.check import Plan
from kernelproof.check.timed import judge
from kernelproof.seeding import seed_all
from kernelproof.timing import Pick


def reference(name: str = "cumsum"):
    return problem.load(name)


def pick(found, seed: int, change=None, again: bool = False) -> Pick:
    seed_all(seed)
    inputs = found.inputs(found.problem.cases[0])
    output = found.module.Model()(*inputs)
    return Pick(seed, "host", 3, change(output) if change else output, again)


def judged(found, picks: list[Pick], untimed=lambda output: output):
    """``untimed``: what becomes of a right output in a call that is not timed."""

    def call(inputs: list[Any], seed: int) -> Any:
        right = found.module.Model()(*inputs)
        return [{"output": right}, {"output": untimed(right)}]

    plan = Plan(seeds=(1,))
    return judge(found, plan, found.problem.cases[0], picks, call)


def off(output: torch.Tensor) -> torch.Tensor:
    output = output.clone()
    output[-1, -1] += 1
    return output


def test_right_outputs_pass() -> None:
    found = reference()
    answer = judged(found, [pick(found, seed) for seed in range(9)])
    assert answer.status == "pass" and "9 outputs" in answer.check.message
    assert "6 judged" in answer.check.message


@pytest.mark.parametrize("change", [off, torch.zeros_like, lambda y: y[:-1], lambda y: [y]])
def test_one_wrong_output_of_many_is_found(change) -> None:
    found = reference()
    picks = [pick(found, seed) for seed in range(9)] + [pick(found, 77, change)]
    answer = judged(found, picks)
    assert answer.status == "cheat" and answer.call is not None and answer.call.seed == 77
    assert "round 3" in answer.check.message


def test_what_is_wrong_without_a_clock_too_is_no_cheat() -> None:
    found = reference()
    assert judged(found, [pick(found, 5, off)], untimed=off).status == "wrong"


def test_outputs_of_changed_inputs_are_left_out() -> None:
    found = reference("add_inplace_relu")
    one = pick(found, 5, torch.zeros_like)
    assert judged(found, [one]).status != "pass"
    answer = judged(found, [dataclasses.replace(one, again=True)])
    assert answer.status == "pass" and "changes its inputs" in answer.check.message


def test_no_output_is_a_note() -> None:
    answer = judged(reference(), [])
    assert answer.check.outcome == "note"
