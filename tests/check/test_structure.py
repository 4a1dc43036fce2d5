"""Bugs below the rounding noise are found, and honest kernels are not."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from kernelproof import problem
from kernelproof.check import Plan, budget, check, pooling
from kernelproof.check.structure import MIN_GROUPS, Regression, Structure, counting_hints

sys.path.insert(0, str(Path(__file__).parent))
import structure_kernels as kernels
from test_judge import Local


def excess_of(draw) -> budget.Excess:
    torch.manual_seed(1)
    got, own, truth = draw()
    return budget.excess(got.double(), truth, own.double(), torch.zeros_like(truth), own.dtype)


@pytest.mark.parametrize("name", kernels.HONEST)
def test_an_honest_kernel_is_not_failed(name: str) -> None:
    draw, terms = kernels.HONEST[name]
    assert excess_of(draw).within()
    found = kernels.pooled(draw, terms).finding(kernels.hints(name, terms))
    # Truncation, and a constant that 16 bits cannot hold, are seen; neither is wrong.
    told = "truncating" in name or name in ("constant rounded to bf16", "constant rounded to fp16")
    assert found is not None and found.outcome == ("note" if told else "pass"), found.message


@pytest.mark.parametrize("name", kernels.WRONG)
def test_a_wrong_formula_is_failed_and_named(name: str) -> None:
    draw, terms, words = kernels.WRONG[name]
    assert excess_of(draw).within(), "the bug is meant to be below what the error budget sees"
    found = kernels.pooled(draw, terms).finding(kernels.hints(name, terms))
    assert found is not None and found.outcome == "fail" and found.certain
    assert words in found.message


@pytest.mark.parametrize("name", kernels.TOLD)
def test_what_could_be_honest_is_a_note(name: str) -> None:
    draw, terms, words = kernels.TOLD[name]
    found = kernels.pooled(draw, terms).finding(kernels.hints(name, terms))
    assert found is not None and found.outcome == "note"
    assert words in found.message


def test_two_runs_are_not_certain() -> None:
    draw, terms, _ = kernels.WRONG["layer norm fp16, unbiased variance"]
    found = kernels.pooled(draw, terms, runs=2).finding(counting_hints([terms]))
    assert found is not None and found.outcome == "fail" and not found.certain


def test_the_same_inputs_again_add_no_certainty() -> None:
    got, own, truth = kernels.product(kernels.times(1 + 1e-6))
    structure = Structure(torch.float32, 512)
    for _ in range(MIN_GROUPS):
        structure.add(got, own, truth)
    found = structure.finding()
    assert structure.runs == 1 and found is not None and not found.certain


def test_a_factor_that_differs_from_run_to_run_is_noise() -> None:
    """One scalar per call, such as a norm over everything, is one draw however many elements."""
    structure = Structure(torch.float32, 1)
    for seed in range(MIN_GROUPS):
        draw = torch.Generator().manual_seed(seed)
        truth = torch.randn(64, 64, generator=draw, dtype=torch.float64)
        error = 30 * 2**-24 * torch.randn((), generator=draw, dtype=torch.float64)
        structure.add((truth * (1 + error)).float(), truth.float(), truth)
    found = structure.finding()
    assert found is not None and found.outcome == "pass"


def test_an_offset_is_found() -> None:
    structure = Structure(torch.float32, 1)
    for seed in range(MIN_GROUPS):
        truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).double()
        structure.add((truth + 5e-7).float(), truth.float(), truth)
    found = structure.finding()
    assert found is not None and found.outcome == "fail" and "offset" in found.message


def test_a_reference_with_the_same_slope_excuses_it() -> None:
    structure = Structure(torch.float32, 1)
    for seed in range(MIN_GROUPS):
        truth = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).double()
        structure.add((truth * (1 + 1e-6)).float(), (truth * (1 + 9e-7)).float(), truth)
    found = structure.finding()
    assert found is not None and found.outcome == "pass"


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,), (4, 0)])
def test_too_little_to_tell(shape: tuple[int, ...]) -> None:
    structure = Structure(torch.float32, 1)
    truth = torch.rand(shape, dtype=torch.float64)
    structure.add(truth.float(), truth.float(), truth)
    assert structure.finding() is None


def test_what_is_no_number_is_left_out() -> None:
    structure = Structure(torch.float32, 1)
    truth = torch.randn(64, 64, dtype=torch.float64)
    truth[3, 4], truth[5, 6] = torch.nan, torch.inf
    structure.add(truth.float(), truth.float(), truth)
    found = structure.finding()
    assert found is not None and found.outcome == "pass" and "nan" not in found.message


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_slope_and_its_error_are_those_of_the_data(scale: float) -> None:
    regression = Regression()
    for seed in range(8):
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(50, 40, generator=draw, dtype=torch.float64) * scale
        noise = torch.randn(50, 40, generator=draw, dtype=torch.float64) * scale
        regression.add(0.25 * x + 0.1 * noise, x, torch.full_like(x, scale**-2))
    found = regression.estimate()
    assert found is not None and found.runs == 8
    assert abs(found.slope - 0.25) < 4 * found.error
    # 0.1 over the root of 16000 elements; the largest of several estimates of it.
    assert 0.7 < found.error / (0.1 / 16000**0.5) < 2.5
    assert found.spread < 0.01


def test_a_slope_of_each_row_shows_as_spread_and_in_the_standard_error() -> None:
    regression = Regression()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(400, 60, generator=draw, dtype=torch.float64)
    own = torch.randn(400, 1, generator=draw, dtype=torch.float64)
    regression.add(own * x, x, torch.ones_like(x))
    found = regression.estimate()
    assert found is not None
    assert 0.8 < found.spread < 1.2 and 0.7 < found.error / (1 / 400**0.5) < 1.5


# --- in a check -----------------------------------------------------------------------------------

NORM = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eps = 1e-5
    def forward(self, x):
        v = x.float()
        var = v.var(-1, keepdim=True, unbiased=False)
        return ((v - v.mean(-1, keepdim=True)) * torch.rsqrt(var + self.eps)).to(x.dtype)
def get_inputs(rows=4):
    return [(3 * torch.randn(rows, 1024)).bfloat16()]
CASES = {'small': {}, 'default': {'rows': 48}}
"""


def norm_of(x, call, eps=1e-5, unbiased=False, factor=1.0):
    v = x.double()
    var = v.var(-1, keepdim=True, unbiased=unbiased)
    return ((v - v.mean(-1, keepdim=True)) * factor * torch.rsqrt(var + eps)).to(x.dtype)


@pytest.fixture
def reference(tmp_path: Path):
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    return problem.load(path)


@pytest.mark.parametrize(
    ("bug", "words"),
    [
        ({"unbiased": True}, "like N - 1 for N in a variance of N = 1024"),
        ({"eps": 1e-3}, "like eps = 0.001 for 1e-05"),
    ],
)
def test_the_verdict_is_wrong_and_says_why(reference, bug, words: str) -> None:
    """The case has two seeds; more are drawn because something stands out."""
    verdict = check(reference, Local(lambda x, call: norm_of(x, call, **bug)), Plan(seeds=(1, 2)))
    assert verdict.status == "wrong" and words in verdict.message
    assert all(o.compat for run in verdict.runs for o in run.outputs)
    assert [c.outcome for c in verdict.checks if c.name == "error structure"] == ["fail"]
    assert len({run.seed for run in verdict.runs}) == MIN_GROUPS


def test_an_unknown_factor_is_a_note_in_the_verdict(reference) -> None:
    def kernel(x, call):
        return norm_of(x, call, factor=1.0007)

    verdict = check(reference, Local(kernel), Plan(seeds=(1, 2)))
    assert verdict.status == "pass"
    (note,) = [c for c in verdict.checks if c.name == "error structure"]
    assert note.outcome == "note" and "systematic scale error of 0.0007" in note.message


def test_an_honest_kernel_needs_no_more_seeds(reference) -> None:
    verdict = check(reference, Local(norm_of), Plan(seeds=(1, 2)))
    assert verdict.status == "pass" and len(verdict.runs) == 4
    assert [c.outcome for c in verdict.checks if c.name == "error structure"] == ["pass"]


def test_a_large_output_is_thinned_evenly(monkeypatch) -> None:
    """Rows stay whole, and a systematic error still shows."""
    x = torch.arange(40 * 60 * 7).reshape(40, 60, 7)
    few = pooling.thinned(x, 2000)
    assert few.numel() <= 2000 + 40 * 7 and few.shape[-1] == 7 and few.shape[0] == 40
    assert pooling.thinned(x, 1 << 20) is x
    assert pooling.thinned(torch.zeros(1000), 100).numel() == 100
    assert pooling.thinned(torch.zeros(2, 1000), 100).numel() <= 102


@pytest.mark.parametrize("shape", [(40, 60, 7), (1000,), (2, 1000), (3, 5)])
def test_every_slice_of_a_large_output_may_be_looked_at(shape: tuple[int, ...]) -> None:
    """Else whoever knows which are could be exact there, and biased everywhere else."""
    x = torch.arange(math.prod(shape)).reshape(shape)
    parts = [pooling.thinned(x, 8, n / 64) for n in range(64)]
    assert len({part.shape for part in parts}) == 1 and parts[0].numel() >= 1
    seen = torch.cat([part.flatten() for part in parts])
    assert seen.unique().numel() > 1.5 * parts[0].numel()
    pools = [pooling.Pool() for _ in range(3)]
    assert len({pool._start for pool in pools}) == 3


def test_what_is_flushed_to_zero_has_no_structure() -> None:
    """Below the smallest normal number an honest kernel may give zeros: all of them, or some."""
    for scale in (1e-42, 1e-38):
        structure = Structure(torch.float32, 1)
        for seed in range(MIN_GROUPS):
            draw = torch.Generator().manual_seed(seed)
            truth = torch.randn(64, 64, generator=draw, dtype=torch.float64) * scale
            value = truth.float()
            got = torch.where(value.abs() < torch.finfo(torch.float32).tiny, 0.0, value)
            structure.add(got, value, truth)
        found = structure.finding()
        assert found is None or found.outcome == "pass", found
