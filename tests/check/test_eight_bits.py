"""Eight-bit floats, in which torch stores and does not compute: as inputs, weights and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof import lint, problem
from kernelproof.pipeline import Options, judge

PRODUCT = """
import torch
class Model(torch.nn.Module):
    def forward(self, a, b, scale):
        return ((a.float() @ b.float().T) * scale).to(torch.bfloat16)
def get_inputs():
    a = torch.randn(20, 48).to(torch.float8_e4m3fnuz)
    return [a, torch.randn(24, 48).to(torch.float8_e4m3fn), torch.rand(24)]
"""
STORED = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("w", torch.randn(24, 48).to(torch.float8_e4m3fn))
        self.register_buffer("ones", torch.ones(24).to(torch.float8_e5m2))
    def forward(self, a):
        return (a.float() @ self.w.float().T * self.ones.float()).to(torch.bfloat16)
def get_inputs():
    return [torch.randn(20, 48).to(torch.float8_e4m3fn)]
"""
QUANTIZED = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        scale = x.abs().amax(dim=1, keepdim=True) / 448
        return (x / scale).to(torch.float8_e4m3fn), scale
def get_inputs():
    return [torch.randn(20, 48)]
"""
PROBLEMS = {"product": PRODUCT, "stored": STORED, "quantized": QUANTIZED}


def status(tmp_path: Path, text: str, candidate: str) -> str:
    (tmp_path / "problem_of_eight_bits.py").write_text(text)
    (tmp_path / "candidate.py").write_text(text + candidate)
    options = Options(device="cpu", seeds=2, seed=7)
    found = judge(tmp_path / "problem_of_eight_bits.py", tmp_path / "candidate.py", options=options)
    return found.verdict.status


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_reference_passes_as_its_own_candidate(name: str, tmp_path: Path) -> None:
    assert status(tmp_path, PROBLEMS[name], "\nModelNew = Model\n") == "pass"


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_unit_of_eight_bits_does_not_allow_for_anything(name: str, tmp_path: Path) -> None:
    path = tmp_path / "problem_of_eight_bits.py"
    path.write_text(PROBLEMS[name])
    report = lint.examine(problem.load(path), seed=3)
    accepted = [c.name for c in report.cheats if c.accepted and c.kind != "precision"]
    assert [name for name in accepted if "ones" not in name] == []


def test_a_fifth_off_is_wrong(tmp_path: Path) -> None:
    off = """
class ModelNew(Model):
    def forward(self, a, b, scale):
        y = super().forward(a, b, scale).float()
        return (y * (1 + 0.2 * torch.sin(torch.arange(y.numel()).view(y.shape)))).bfloat16()
"""
    assert status(tmp_path, PRODUCT, off) == "wrong"
