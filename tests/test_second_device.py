"""A candidate on another GPU than the current one; needs two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernelproof.pipeline import Options, judge

pytestmark = pytest.mark.gpu

# Launches where it stands, as a kernel without a device guard does.
UNGUARDED = """
import torch
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch
code = '''extern "C" __global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.f * x[i];
}'''
major, minor = torch.cuda.get_device_capability()
program = Program(code, "c++", options=ProgramOptions(arch=f"sm_{major}{minor}"))
kernel = program.compile("cubin").get_kernel("twice")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        import numpy as np
        x = x.contiguous()
        y = torch.empty_like(x)
        here = torch.cuda.current_device()
        handle = torch.cuda.current_stream(here).cuda_stream
        stream = Stream.from_handle(handle if handle else 1)
        blocks = LaunchConfig(grid=(x.numel() + 255) // 256, block=256)
        launch(stream, blocks, kernel, x.data_ptr(), y.data_ptr(), np.int32(x.numel()))
        return y
"""
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x): return 2 * x
def get_inputs(): return [torch.randn(1000)]
"""


def told(record):
    assert record.status == "pass", record.verdict.message
    return next(c for c in record.verdict.checks if c.name == "second device")


@pytest.fixture(autouse=True)
def _two() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")


def test_a_shipped_kernel_runs_on_the_device_of_its_tensors() -> None:
    assert told(judge("mla_kv", "cuda", options=Options(seed=1))).outcome == "pass"


def test_it_can_be_judged_there() -> None:
    record = judge("mla_kv", "cuda", timed=True, options=Options(
        seed=1, device="cuda:1", baselines=("eager",), rounds=3
    ))  # fmt: skip
    assert told(record).outcome == "pass" and record.timing.device == "cuda:1"


def test_a_launch_on_the_current_device_is_noted(tmp_path: Path) -> None:
    (tmp_path / "double.py").write_text(PROBLEM)
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    record = judge(tmp_path / "double.py", tmp_path / "unguarded.py", options=Options(seed=1))
    # Where the GPUs can reach each other's memory it runs on the wrong one and is right.
    found = told(record)
    assert found.outcome == "pass" or "CUDAGuard" in found.message
