"""Gradients of a candidate beside those of the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof import pipeline, problem
from kernelproof.backward import Gradients
from kernelproof.check import Plan, gradients
from kernelproof.errors import CandidateCrash

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(32, 16))
    def forward(self, x, table, place):
        return torch.tanh(x @ self.w) * table[place]
def get_inputs():
    return [torch.randn(8, 32), torch.randn(5, 16), torch.randint(0, 5, (8,))]
"""


class Product(torch.autograd.Function):
    """tanh(x @ w) with a backward of its own; ``slope`` is that of tanh at y."""

    slope = staticmethod(lambda y: 1 - y * y)

    @staticmethod
    def forward(ctx, x, w):
        y = torch.tanh(x @ w)
        ctx.save_for_backward(x, w, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, w, y = ctx.saved_tensors
        g = g * Product.slope(y)
        return g @ w.T, x.T @ g


class Candidate(torch.nn.Module):
    def __init__(self, w, change=lambda y: y, weight=lambda w: w) -> None:
        super().__init__()
        self.w, self.change, self.weight = torch.nn.Parameter(w), change, weight

    def forward(self, x, table, place):
        return self.change(Product.apply(x, self.weight(self.w)) * table[place])


def judged(tmp_path: Path, extra: str = "", **kwargs):
    path = tmp_path / "product.py"
    path.write_text(PROBLEM + extra)
    reference = problem.load(path)
    plan = Plan(seeds=(3, 4))
    torch.manual_seed(3)
    candidate = Candidate(reference.module.Model().w.detach(), **kwargs)

    def ask(inputs):
        try:
            return Gradients(candidate)(*inputs)
        except NotImplementedError as error:
            raise CandidateCrash(f"NotImplementedError: {error}") from error

    return gradients.judge(reference, plan, reference.problem.cases[0], ask)


def test_right_gradients_pass(tmp_path: Path) -> None:
    assert judged(tmp_path).outcome == "pass"


def test_a_wrong_backward_is_told_and_decides_only_where_the_problem_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Product, "slope", staticmethod(lambda y: 1 - y))
    found = judged(tmp_path)
    assert found.outcome == "note" and "gradient by argument 0" in found.message
    assert judged(tmp_path, "BACKWARD = True\n").outcome == "fail"


def test_forward_only_is_no_fault_unless_the_problem_asks(tmp_path: Path) -> None:
    found = judged(tmp_path, change=torch.Tensor.detach)
    assert found.outcome == "skip" and "forward only" in found.message
    found = judged(tmp_path, "BACKWARD = True\n", change=torch.Tensor.detach)
    assert found.outcome == "fail"


def test_a_cut_graph_is_named(tmp_path: Path) -> None:
    found = judged(tmp_path, weight=torch.Tensor.detach)
    assert found.outcome == "note" and "there is no gradient by parameter w" in found.message


def test_a_backward_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(y):
        raise NotImplementedError("no backward")

    monkeypatch.setattr(Product, "slope", staticmethod(refuses))
    found = judged(tmp_path)
    assert found.outcome == "note" and "does not run: NotImplementedError" in found.message


def test_low_precision_gradients_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    low = staticmethod(lambda y: (1 - y * y).to(torch.bfloat16).float())
    monkeypatch.setattr(Product, "slope", low)
    assert judged(tmp_path).outcome == "note"


def test_nothing_to_say_without_gradients(tmp_path: Path) -> None:
    path = tmp_path / "count.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x): return (x > 0).sum(dim=-1)\n"
        "def get_inputs(): return [torch.randn(4, 8)]\n"
    )
    reference = problem.load(path)
    plan = Plan(seeds=(1,))
    assert gradients.judge(reference, plan, reference.problem.cases[0], lambda x: []) is None


def test_a_backward_that_ends_its_process_costs_the_candidate_nothing_else(tmp_path: Path) -> None:
    # Its tripwires are not lost with the process, and the one that follows has none to ask.
    path, candidate = tmp_path / "product.py", tmp_path / "ends.py"
    path.write_text(PROBLEM)
    ends = """
import os
class Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return y.clone()
    @staticmethod
    def backward(ctx, g):
        os._exit(3)
class ModelNew(Model):
    def forward(self, *inputs):
        return Ends.apply(super().forward(*inputs))
"""
    candidate.write_text(PROBLEM + ends)
    options = pipeline.Options(device="cpu", seeds=1)
    verdict = pipeline.judge(path, candidate, options=options).verdict
    assert verdict.status == "pass", verdict.message
    found = next(c for c in verdict.checks if c.name == "gradients")
    assert found.outcome == "note" and "its backward does not run" in found.message
    candidate.write_text(PROBLEM + ends + "\ntorch.allclose = lambda *a, **k: True\n")
    assert pipeline.judge(path, candidate, options=options).verdict.status == "cheat"
