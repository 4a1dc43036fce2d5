"""An output whose elements share memory is not the output that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.pipeline import Options, judge

PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        {reference}
def get_inputs():
    return [torch.randn(8, 9)]
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {candidate}
"""
SPREAD = "return x.mean(-1, keepdim=True).expand_as(x)"
TWICE = "y = x + 1; return y, y"


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        (f"{SPREAD}.contiguous()", SPREAD, "output 0 has several elements in one place"),
        (f"{SPREAD}.contiguous()", f"{SPREAD}.clone().contiguous()", ""),
        (SPREAD, SPREAD, ""),
        ("return x + 1, x + 1", TWICE, "outputs 0 and 1 are in the same memory"),
        (TWICE, TWICE, ""),
        ("return x * 2, x + 1", "y = x.new_empty(2, 8, 9); y[0] = x * 2; y[1] = x + 1; "
         "return y[0], y[1]", ""),
    ],
)  # fmt: skip
def test_outputs_do_not_overlap(tmp_path: Path, reference: str, candidate: str, words: str) -> None:
    for name in ("problem", "candidate"):
        text = PROBLEM.format(reference=reference, candidate=candidate)
        (tmp_path / f"{name}.py").write_text(text)
    pair = tmp_path / "problem.py", tmp_path / "candidate.py"
    record = judge(*pair, options=Options(device="cpu", seeds=1, seed=3, level="quick"))
    assert record.status == ("wrong" if words else "pass"), record.verdict.message
    assert words in record.verdict.message
