"""The same values in other storage, and candidates that read them wrongly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernelproof import problem
from kernelproof.check import Plan, check, layouts
from kernelproof.errors import CandidateCrash
from kernelproof.pipeline import Options, judge

X = torch.randn(4, 6, 10)


@pytest.mark.parametrize("name", ["transposed", "gap", "sliced", "offset"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool, torch.complex64])
def test_values_stay_the_same(name: str, dtype: torch.dtype) -> None:
    x = (3 * X).to(dtype) if dtype != torch.bool else X > 0
    (made,) = layouts.relaid(name, [x])
    assert torch.equal(made, x) and made.dtype == x.dtype
    assert layouts.same_values(name) and not layouts.same_values("expanded")


def test_storage_is_what_the_name_says() -> None:
    def made(name: str, x: torch.Tensor = X) -> torch.Tensor:
        return layouts.relaid(name, [x])[0]

    assert made("transposed").stride() == (60, 1, 6)
    assert made("gap").stride() == (78, 13, 1) and made("gap", X[0, 0]).stride() == (2,)
    assert made("sliced").stride() == (70, 10, 1)
    assert made("sliced", torch.ones(2, 3, 4, 5)).stride() == (100, 25, 5, 1)
    offset = made("offset")
    assert offset.is_contiguous() and offset.data_ptr() % 16
    assert made("expanded").stride()[0] == 0 and torch.equal(made("expanded")[3], X[0])
    (again,) = layouts.contiguous([made("gap")])
    assert again.is_contiguous() and torch.equal(again, X)


def test_inputs_without_such_a_layout() -> None:
    assert layouts.relaid("transposed", [X[0, 0], 3, "text"]) is None
    assert layouts.relaid("expanded", [torch.arange(12).view(3, 4)]) is None
    assert layouts.relaid("sliced", [X[0]]) is None
    assert layouts.relaid("gap", [torch.tensor(1.0), torch.empty(0, 3)]) is None
    made = layouts.relaid("transposed", [X[0, 0], {"x": X}])
    assert made[0] is X[0, 0] or torch.equal(made[0], X[0, 0])
    assert not made[1]["x"].is_contiguous()


class Local:
    def __init__(self, function) -> None:
        self.function = function

    def construct(self, args, kwargs, seed, state) -> str:
        return "the reference has no weights"

    def call(self, inputs, seed, poison, repeats):
        facts = {"mutated": [], "views_input": [], "reused": [], "devices": ["cpu"]}
        return [{"output": self.function(*inputs), **facts} for _ in range(repeats)]


@pytest.fixture
def reference(tmp_path: Path):
    path = tmp_path / "double.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x): return x * 2.5\n"
        "def get_inputs(): return [torch.randn(4, 6, 10)]\n"
    )
    return problem.load(path)


def judged(reference, function, level="default"):
    return check(reference, Local(function), Plan(seeds=(1,), level=level))


def as_if_contiguous(x: torch.Tensor) -> torch.Tensor:
    """What a kernel sees that takes the address and the shape only."""
    strides = [math.prod(x.shape[i + 1 :]) for i in range(x.dim())]
    memory = torch.cat((torch.as_strided(x, (_extent(x),), (1,)), torch.zeros(x.numel())))
    return torch.as_strided(memory, x.shape, strides)


def _extent(x: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))


def test_a_candidate_that_ignores_strides_is_wrong(reference) -> None:
    verdict = judged(reference, lambda x: as_if_contiguous(x) * 2.5)
    assert verdict.status == "wrong"
    assert verdict.message.startswith("case default [transposed]: ")
    assert verdict.message.endswith("With contiguous inputs the same values come out right")
    assert judged(reference, lambda x: as_if_contiguous(x) * 2.5, level="quick").status == "pass"


def test_one_that_takes_its_own_contiguous_copy_is_right(reference) -> None:
    verdict = judged(reference, lambda x: as_if_contiguous(x.contiguous()) * 2.5)
    assert verdict.status == "pass", verdict.message
    assert {run.name for run in verdict.runs} >= {f"default [{n}]" for n in layouts.LAYOUTS}


@pytest.mark.parametrize(("clean", "status"), [(True, "pass"), (False, "crash")])
def test_refusing_a_layout_is_a_note_and_dying_is_not(reference, clean: bool, status) -> None:
    def refuses(x):
        if not x.is_contiguous():
            error = CandidateCrash("RuntimeError: x must be contiguous")
            error.clean = clean
            raise error
        return x * 2.5

    verdict = judged(reference, refuses)
    assert verdict.status == status
    notes = {c.name: c.message for c in verdict.checks if c.outcome == "note"}
    if clean:
        assert set(notes) == {
            "takes transposed inputs",
            "takes gap inputs",
            "takes sliced inputs",
            "takes expanded inputs",
        }
        assert "x must be contiguous" in notes["takes gap inputs"]
    else:
        assert "case default [transposed]: " in verdict.message


def test_a_value_bug_in_an_expanded_input_is_not_blamed_on_the_layout(reference) -> None:
    def equal_slices_only(x):
        return x * (2.5 + bool((x == x[:1]).all()))

    verdict = judged(reference, equal_slices_only)
    assert verdict.status == "wrong" and "[expanded]" in verdict.message
    assert "With contiguous inputs" not in verdict.message


def test_a_layout_that_the_reference_does_not_take_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "viewing.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n"
        "    def forward(self, x): return x.view(-1) * 2.5\n"
        "def get_inputs(): return [torch.randn(4, 6)]\n"
    )
    verdict = judged(problem.load(path), lambda x: x.reshape(-1) * 2.5)
    cases = {run.name for run in verdict.runs}
    assert "default [offset]" in cases and "default [gap]" not in cases


CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        n = x.numel()
        flat = torch.as_strided(x.contiguous(), (n + 1,), (1,))
        {line}
        return x * 2.5
"""


def test_a_kernel_that_writes_one_element_past_its_input(reference, tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE.format(line="flat[n] = 7.0"))
    options = Options(device="cpu", seeds=1, seed=1, level="quick")
    record = judge(reference.problem.path, path, options=options)
    assert record.status == "wrong"
    assert record.verdict.message == (
        "case default: the call wrote outside input 0 (1 element(s) past its end)"
    )
    path.write_text(CANDIDATE.format(line="return (flat[1:] - flat[:-1] + x.flatten()).sum()"))
    assert judge(reference.problem.path, path, options=options).status == "wrong"


def test_strides_and_alignment_reach_the_candidate(reference, tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n"
        "        if x.data_ptr() % 16: raise ValueError('misaligned')\n"
        "        if not x.is_contiguous(): raise ValueError(f'strides {tuple(x.stride())}')\n"
        "        return x * 2.5\n"
    )
    record = judge(reference.problem.path, path, options=Options(device="cpu", seeds=1, seed=1))
    assert record.status == "pass", record.verdict.message
    said = {c.name: c.message for c in record.verdict.checks if c.outcome == "note"}
    assert "misaligned" in said["takes offset inputs"]
    assert "strides (60, 1, 6)" in said["takes transposed inputs"]
    assert "strides (78, 13, 1)" in said["takes gap inputs"]
    assert "strides (0, 10, 1)" in said["takes expanded inputs"]
