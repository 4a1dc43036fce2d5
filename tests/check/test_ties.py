"""Integers that differ where rounding decides are right, and others are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.pipeline import Options, judge
from kernelproof.types import Record

QUANTIZED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        scale = x.abs().amax(dim=-1, keepdim=True) / 127
        return torch.round(x / scale).to(torch.int8), scale
def get_inputs():
    # Half of the quotients in the middle between two integers.
    x = (torch.randint(-99, 99, (64, 500)) + 0.5) * torch.rand(64, 1)
    x[:, 0] = x[:, 1] / x[:, 1].abs() * x.abs().amax(dim=-1) * 127 / 98.5
    x[:, 250:] = torch.randn(64, 250).clamp(-4, 4) / 5 * x[:, :1].abs()
    return [x]
"""
LARGER = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, y):
        return x * 0.7 > y
def get_inputs():
    x = torch.randn(300, 400)
    return [x, 0.7 * x * (1 + torch.randint(-1, 2, x.shape) * 2.0**-23)]
"""
CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, *inputs):
        {body}
"""
BY_RECIPROCAL = """
        x, = inputs
        most = x.abs().amax(dim=-1, keepdim=True)
        return torch.round(x * (127 / most)).to(torch.int8), most / 127
"""


def judged(tmp_path: Path, problem: str, body: str) -> Record:
    (tmp_path / "problem.py").write_text(problem)
    (tmp_path / "candidate.py").write_text(CANDIDATE.format(body=body.strip()))
    options = Options(device="cpu", seeds=2, seed=5, level="quick")
    return judge(tmp_path / "problem.py", tmp_path / "candidate.py", options=options)


def ties(record: Record) -> list[str]:
    return [c.message for c in record.verdict.checks if c.name == "ties"]


def test_a_quotient_may_be_a_product_with_the_reciprocal(tmp_path: Path) -> None:
    record = judged(tmp_path, QUANTIZED, BY_RECIPROCAL)
    assert record.status == "pass", record.verdict.message
    (text,) = ties(record)
    assert "integer(s) differ, where rounding decides" in text


def test_a_comparison_of_equal_numbers_may_go_either_way(tmp_path: Path) -> None:
    record = judged(tmp_path, LARGER, "return inputs[0] > inputs[1] / 0.7")
    assert record.status == "pass", record.verdict.message
    assert ties(record)


@pytest.mark.parametrize(
    "body",
    [
        BY_RECIPROCAL.replace("torch.round(", "torch.trunc("),
        BY_RECIPROCAL.replace("torch.round(", "torch.floor(0.5 + 1e-2 + "),
        # In one place.
        BY_RECIPROCAL.replace("return ", "x = x.clone(); x[3, 5] += most[3, 0] / 50; return "),
    ],
)
def test_what_is_no_tie_is_wrong(tmp_path: Path, body: str) -> None:
    record = judged(tmp_path, QUANTIZED, body)
    assert record.status == "wrong" and "integers differ" in record.verdict.message


def test_without_floating_inputs_there_are_no_ties(tmp_path: Path) -> None:
    problem = QUANTIZED.replace("return [x]", "return [torch.randint(-9, 9, (8, 8))]")
    problem = problem.replace("scale = x", "x = x.float(); scale = x")
    right = BY_RECIPROCAL.replace("x, = inputs", "x = inputs[0].float()")
    assert (
        judged(tmp_path, problem, right.replace("x * (127 / most)", "x / (most / 127)")).status
        == "pass"
    )
    wrong = right.replace("torch.round(", "torch.round((torch.arange(8) == 3) + ")
    assert judged(tmp_path, problem, wrong).status == "wrong"


def test_what_is_tied_exactly_stays_tied(tmp_path: Path) -> None:
    problem = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.stack([row.eq(row.max()).nonzero()[0, 0] for row in x])
def get_inputs():
    return [torch.randint(0, 4, (40, 50)).float() / 3]
"""
    first = "return inputs[0].max(dim=-1, keepdim=True).values.eq(inputs[0]).int().argmax(dim=-1)"
    last = "x, = inputs; return 49 - x.flip(-1).eq(x.amax(-1, keepdim=True)).int().argmax(dim=-1)"
    assert judged(tmp_path, problem, first).status == "pass"
    assert judged(tmp_path, problem, last).status == "wrong"
