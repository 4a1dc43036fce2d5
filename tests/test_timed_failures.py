"""What happens when a timed call raises, and when a CUDA graph does not hold what a call does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof.errors import CandidateCrash
from kernelproof.pipeline import Options, judge
from kernelproof.timed_worker import Timed
from kernelproof.timing import Fresh
from kernelproof.types import CURRENT_STREAM, Record

QUICK = {"level": "quick", "seeds": 1, "baselines": ("eager",), "rounds": 10, "seconds": 2.0}
AXPBY = """
import torch
import torch.nn as nn
{head}
class ModelNew(nn.Module):
    calls = 0
    def forward(self, x, z, alpha, beta, valid):
        ModelNew.calls += 1
        {first}
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
"""
# Kernels on streams that torch does not ask for. All are right where nobody else uses streams: the
# legacy default stream and a stream of `cudaStreamCreate` wait for one another.
ON_DEFAULT = "with torch.cuda.stream(torch.cuda.default_stream()):\n            x = x * 1"
ON_OWN = "with torch.cuda.stream(OWN):\n            x = x * 1"
OWN = """
import ctypes
torch.ones(1, device="cuda")
made = ctypes.c_void_p()
assert ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), 0) == 0
OWN = torch.cuda.ExternalStream(made.value)
"""


def timed(folder: Path, first: str, head: str = "", **options: Any) -> Record:
    path = folder / "candidate.py"
    path.write_text(AXPBY.format(first=first, head=head))
    return judge("axpby", path, timed=True, options=Options(**{**QUICK, **options}))


def test_a_candidate_that_raises_when_it_is_timed_does_not_pass(tmp_path: Path) -> None:
    """Not even where all of its outputs are right: clocks would not be compared."""
    record = timed(tmp_path, "if self.calls > 60: raise RuntimeError('enough')", device="cpu")
    assert record.status == "crash"
    assert record.verdict.message == "while timed: RuntimeError: enough"
    assert record.timing is None


def test_a_candidate_that_hangs_when_it_is_timed_does_not_pass(tmp_path: Path) -> None:
    first = "if self.calls > 60:\n            while True: pass"
    record = timed(tmp_path, first, device="cpu", call_timeout=1.5)
    assert record.status == "timeout" and record.timing is None
    assert record.verdict.message.startswith("while timed: no answer to ")


def test_where_memory_ends_there_are_no_times_and_the_verdict_stays(tmp_path: Path) -> None:
    """What is timed holds more inputs and outputs than one call does."""
    first = "if self.calls > 60: raise RuntimeError('CUDA out of memory. Tried to allocate')"
    record = timed(tmp_path, first, device="cpu")
    assert record.status == "pass" and record.timing is None
    (check,) = (c for c in record.verdict.checks if c.name == "timing")
    assert check.outcome == "note" and "no times: while timed: " in check.message


class Told:
    """A worker that cannot capture, or has ended."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.asked: list[tuple[str, bool]] = []

    def ask(self, do: str, timeout: float, **fields: Any) -> Any:
        if self.problem == "ended":
            raise CandidateCrash("it has ended")
        self.asked.append((do, fields["graph"]))
        graph = fields["graph"] and not self.problem
        problem = self.problem if fields["graph"] else ""
        return {"first": 1.0, "host": 1e-3, "graph": 50 if graph else 0, "problem": problem}


class Contestant(Timed):
    def __init__(self, worker: Told, new: Told, ungraphed: str = "") -> None:
        fresh = Fresh(lambda seed: [torch.ones(1)], lambda x: 4, 0, True)
        super().__init__(worker, fresh, 1.0, ungraphed=ungraphed)  # type: ignore[arg-type]
        self.new = new

    def _renew(self) -> bool:
        self.worker = self.new  # type: ignore[assignment]
        return True


def test_after_a_capture_that_fails_another_process_is_timed() -> None:
    broken, new = Told("not capturable in a CUDA graph: why"), Told("none is asked for")
    one = Contestant(broken, new)
    answer = one.prepare()
    assert one.worker is new and new.asked == [("prepare", False)]
    assert answer["graph"] == 0 and answer["problem"] == "not capturable in a CUDA graph: why"


def test_no_graph_is_made_of_what_it_would_not_hold() -> None:
    only = Told("none is asked for")
    answer = Contestant(only, Told(""), "another stream").prepare()
    assert only.asked == [("prepare", False)] and answer["problem"] == "another stream"
    held = Told("")
    one = Contestant(held, Told(""))
    assert one.prepare()["graph"] == 50 and one.worker is held and one.failure is None


def test_the_first_error_of_a_contestant_is_kept() -> None:
    one = Contestant(Told("ended"), Told(""))
    for _ in range(2):
        with pytest.raises(CandidateCrash):
            one.prepare()
    assert one.failure is not None and one.failure.message == "it has ended"


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("first", "head"), [(ON_DEFAULT, ""), (ON_OWN, OWN)], ids=["default", "own"]
)
def test_what_runs_on_another_stream_is_timed_without_a_graph(
    tmp_path: Path, first: str, head: str
) -> None:
    record = timed(tmp_path, first, head, device="cuda")
    assert record.status == "pass", record.verdict.message
    assert {c.name: c.outcome for c in record.verdict.checks}[CURRENT_STREAM] == "note"
    mine = record.timing and record.timing.candidate
    assert mine and mine.device is None and mine.host is not None and mine.cold is not None
    assert "another stream" in mine.problem


@pytest.mark.gpu
def test_a_kernel_on_the_default_stream_is_no_part_of_a_graph_unseen(tmp_path: Path) -> None:
    """Where the check has not seen it: it begins to take that stream when it is timed."""
    either = "with contextlib.nullcontext() if self.calls < 30 else "
    first = ON_DEFAULT.replace("with ", either)
    record = timed(tmp_path, first, "import contextlib", device="cuda")
    assert record.status == "pass", record.verdict.message
    mine = record.timing and record.timing.candidate
    assert mine and mine.device is None and "not capturable" in mine.problem


@pytest.mark.gpu
def test_one_that_cannot_be_captured_draws_random_numbers_all_the_same(tmp_path: Path) -> None:
    """A capture that has failed leaves torch's generator in a state in which it draws none."""
    first = "torch.rand(3, device=x.device).sum().item()"
    record = timed(tmp_path, first, device="cuda")
    assert record.status == "pass", record.verdict.message
    mine = record.timing and record.timing.candidate
    assert mine and mine.device is None and mine.host is not None
    assert any("parent" in c.name or "clock" in c.name for c in record.verdict.checks)
