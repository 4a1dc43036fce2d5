"""Inputs of 16 bits are exact; what is made of them may be rounded to 16 bits, and not to eight."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.pipeline import Options, judge

WIDE = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w):
        return x.float() @ w.float().T
def get_inputs():
    return [torch.randn(32, 96).to(torch.{dtype}), torch.randn(24, 96).to(torch.{dtype})]
"""
NARROW = """
import torch
class Model(torch.nn.Module):
    def forward(self, x, w):
        return x @ w.T
def get_inputs():
    return [torch.randn(32, 96).to(torch.{dtype}), torch.randn(24, 96).to(torch.{dtype})]
"""
CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x, w):
        return {value}
"""
SERIAL = "sum(x[:, k : k + 1].float() * w[:, k].float() for k in range(96))"
SPLIT = "x[:, :50].float() @ w[:, :50].float().T + x[:, 50:].float() @ w[:, 50:].float().T"
ROUNDED = "x.to(torch.float8_e4m3fn).float() @ w.to(torch.float8_e4m3fn).float().T"


def status(tmp_path: Path, problem: str, value: str, dtype: str) -> str:
    (tmp_path / "problem.py").write_text(problem.format(dtype=dtype))
    (tmp_path / "candidate.py").write_text(CANDIDATE.format(value=value))
    options = Options(device="cpu", seeds=2, seed=7)
    return judge(tmp_path / "problem.py", tmp_path / "candidate.py", options=options).status


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_float32_from_16_bits_may_have_been_rounded_on_the_way(tmp_path: Path, dtype: str) -> None:
    assert status(tmp_path, WIDE, SERIAL, dtype) == "pass"
    if dtype == "bfloat16":  # float16 has no room for the sums of large inputs
        assert status(tmp_path, WIDE, f"({SPLIT}).to(torch.{dtype}).float()", dtype) == "pass"
    assert status(tmp_path, WIDE, ROUNDED, dtype) == "wrong"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_not_made_of_eight(tmp_path: Path, dtype: str) -> None:
    for honest in ("x @ w.T", f"({SERIAL}).to(x.dtype)", f"({SPLIT}).to(x.dtype)"):
        assert status(tmp_path, NARROW, honest, dtype) == "pass", honest
    assert status(tmp_path, NARROW, f"({ROUNDED}).to(x.dtype)", dtype) == "wrong"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_partial_sums_may_be_rounded_to_16_bits(tmp_path: Path, dtype: str) -> None:
    halves = "x[:, :50] @ w[:, :50].T + x[:, 50:] @ w[:, 50:].T"
    assert status(tmp_path, NARROW, halves, dtype) == "pass"
