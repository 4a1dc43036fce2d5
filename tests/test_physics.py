"""What is put beside the times of a case: its work, the device's floors, the share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kernelproof import floors, physics, problem
from kernelproof.contestants import Race
from kernelproof.errors import KernelproofError
from kernelproof.pipeline import Options
from kernelproof.types import Contestant, Floors, Series, Timing

sys.path.insert(0, str(Path(__file__).parent / "floors"))
from test_bounds import floors as made_up

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        {body}

def get_inputs(rows=1000):
    return [torch.eye(rows)]
"""


def race(folder: Path, body: str, more: str = "", device: str = "cpu") -> Race:
    path = folder / "made.py"
    path.write_text(PROBLEM.format(body=body) + more)
    reference = problem.load(path)
    return Race(reference, reference.problem.cases[0], device, 1, (), (), Options())


def series(seconds: float) -> Series:
    return Series(samples=(seconds,), rounds=(0,), median=seconds, low=seconds, high=seconds)


def timed(seconds: float = 1e-3, empty: float | None = 5e-6) -> Timing:
    floor = None if empty is None else Contestant(name="empty call", host=series(empty))
    mine = Contestant(name="mine", host=series(seconds), device=series(seconds))
    return Timing(
        case="default",
        device="cpu",
        threads=1,
        candidate=mine,
        baselines=(),
        floor=floor,
        ratios=(),
    )


@pytest.fixture
def device(monkeypatch: Any) -> Floors:
    found = made_up()
    monkeypatch.setattr(floors, "load", lambda device: found)
    return found


def test_work_floors_and_share(tmp_path: Path, device: Floors) -> None:
    found = physics.attached(timed(), race(tmp_path, "return 2 * x"), 1)
    assert (found.flops, found.bytes) == (1e6, 8e6)
    assert found.work is not None and found.floors == device and found.limit is not None
    # 8 MB at the rate of a small set, 10 TB/s; the empty call of this very run takes longer.
    assert {b.kind: b.seconds for b in found.limit.bounds} == pytest.approx(
        {"memory": 8e-7, "call": 5e-6, "vector": 1e6 / 60e12}
    )
    assert found.limit.share == pytest.approx(5e-3)
    assert found.notes == ()


def test_a_gpu_goes_round_several_sets_of_inputs(tmp_path: Path, device: Floors) -> None:
    one = race(tmp_path, "return 2 * x")

    class Gpu(Race):
        cuda = True  # type: ignore[assignment]

    gpu = Gpu(one.reference, one.case, "cpu", 1, (), (), Options())
    found = physics.attached(timed(empty=None), gpu, 200)
    assert found.limit is not None
    rates = {b.kind: b.rate for b in found.limit.bounds}
    assert rates["memory"] == 4e12 and rates["call"] == pytest.approx(1e6)


def test_a_problems_own_figures_win(tmp_path: Path, device: Floors) -> None:
    own = "\nFLOPS = 3e6\ndef BYTES(rows=1000):\n    return 8 * rows * rows\n"
    found = physics.attached(timed(), race(tmp_path, "return 2 * x", own), 1)
    assert (found.flops, found.bytes) == (3e6, 8e6)
    assert found.notes == ("FLOPS of the problem is 3e+06, traced are 1e+06",)


def test_what_is_not_known_is_said(tmp_path: Path, device: Floors) -> None:
    found = physics.attached(timed(), race(tmp_path, "return torch.linalg.cholesky(x)"), 1)
    assert any("no FLOPs known for linalg_cholesky" in note for note in found.notes)
    whole = physics.attached(timed(), race(tmp_path, "return x.double() @ x.double()"), 1)
    assert "no measured rate for fp64 products: no bound from it" in whole.notes


def test_a_reference_that_cannot_be_traced_has_times_all_the_same(
    tmp_path: Path, device: Floors
) -> None:
    broken = race(tmp_path, "raise ValueError('not here')")
    found = physics.attached(timed(), broken, 1)
    assert found.notes == ("the reference could not be traced: ValueError: not here",)
    assert found.work is None and found.limit is None
    declared = race(tmp_path, "raise ValueError('not here')", "\nBYTES = 8e9\n")
    assert physics.attached(timed(), declared, 1).bytes == 8e9


def test_floors_that_could_not_be_measured_are_spoken_of(tmp_path: Path, monkeypatch: Any) -> None:
    def fail(device: str, progress: Any) -> Floors:
        raise KernelproofError("no cuda-core")

    monkeypatch.setattr(floors, "load", lambda device: None)
    monkeypatch.setattr(floors, "get", fail)
    monkeypatch.setattr(physics, "_failed", {})
    physics.prepare("cpu", lambda: None, lambda *_: None)
    found = physics.attached(timed(), race(tmp_path, "return 2 * x"), 1)
    assert found.limit is None and found.work is not None
    assert found.notes == (
        "floors of the device: no cuda-core; `kernelproof floors` measures them",
    )
