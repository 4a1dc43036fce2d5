"""Launches that ask for more than a block can have, in the emulator as on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernelproof import launching
from kernelproof.cuda import Kernel
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.errors import CandidateCrash
from kernelproof.pipeline import Options, judge

SOURCE = """
extern "C" __global__ void fill(float* y) {
  extern __shared__ float scratch[];
  scratch[threadIdx.x] = 1;
  y[threadIdx.x] = scratch[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("grid", "block", "shared", "opt_in", "words"),
    [
        ((1,), (32, 33), 0, True, "1,056 threads; it may have 1 to 1,024"),
        ((1,), (1, 1, 65), 0, True, "65 threads; it may have 1 to 1,024, 64 along z"),
        ((1,), (0,), 0, True, "0 threads"),
        ((1, 65_536), (32,), 0, True, "a grid of (1, 65536) blocks"),
        ((0, 1, 1), (32,), 0, True, "a grid of (0, 1, 1) blocks"),
        ((1,), (32,), 49_153, False, "at most 49,152: raise the limit"),
        ((1,), (32,), 232_449, True, "no GPU grants more than 232,448"),
    ],
)
def test_a_refused_launch_is_told(
    grid: tuple[int, ...], block: tuple[int, ...], shared: int, opt_in: bool, words: str
) -> None:
    with pytest.raises(CandidateCrash, match=re.escape(words)):
        launching.check("k", grid, block, shared, opt_in)
    (said,) = launching.taken()
    assert words in said and said.startswith("the launch of k was refused")
    assert launching.taken() == []


def test_what_fits_is_not_refused() -> None:
    launching.check("k", (1 << 30, 65_535, 65_535), (32, 32), 49_152, False)
    launching.check("k", (1,), (1024,), 232_448, True)
    assert launching.taken() == []


def test_the_emulator_refuses_what_a_gpu_refuses() -> None:
    kernel, y = Kernel(SOURCE, "fill"), torch.zeros(64)
    with standing_in(Recorder()):
        with pytest.raises(CandidateCrash, match=r"50,000 bytes .* without opting in"):
            kernel(y, grid=1, block=64, shared=50_000, opt_in=False)
        assert not y.any()
        kernel(y, grid=1, block=64, shared=50_000)
    assert y.all()
    assert len(launching.taken()) == 1


CANDIDATE = """
import torch, torch.nn as nn
from kernelproof.cuda import Kernel
kernel = Kernel('extern "C" __global__ void axpby(float* y) { y[threadIdx.x] = 0; }', "axpby")
class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        y = torch.empty_like(x)
        kernel(y, grid=1, block=2048)
        return y
"""


FALLS_BACK = """
import torch, torch.nn as nn
from kernelproof.cuda import Kernel
source = '''
extern "C" __global__ void axpby(const float* x, const float* z, float* y, float a, float b, int n,
                                 int columns, int valid) {
  for (int i = threadIdx.x; i < n; i += blockDim.x)
    y[i] = i % columns < valid ? a * x[i] + b * z[i] : x[i];
}
'''
kernel = Kernel(source, "axpby")
class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        y = torch.empty_like(x)
        given = (x.contiguous(), z.contiguous(), y, float(alpha), float(beta), x.numel(),
                 x.shape[1], valid)
        try:
            kernel(*given, grid=1, block=128, shared=100_000, opt_in=False)
        except Exception:
            kernel(*given, grid=1, block=128)
        return y
"""


def test_who_takes_another_way_after_a_refusal_passes(tmp_path: Path) -> None:
    path = tmp_path / "falls_back.py"
    path.write_text(FALLS_BACK)
    options = Options(device="cpu", level="quick", seeds=1, cases=("one_valid",))
    verdict = judge("axpby", path, options=options).verdict
    assert verdict.status == "pass", verdict.message
    (told,) = [check for check in verdict.checks if check.name == "launches accepted"]
    assert told.outcome == "note" and "100,000 bytes" in told.message


def test_an_error_that_nobody_catches_is_the_candidates(tmp_path: Path) -> None:
    path = tmp_path / "large_block.py"
    path.write_text(CANDIDATE)
    options = Options(device="cpu", level="quick", seeds=1, cases=("one",))
    record = judge("axpby", path, options=options)
    assert record.status == "crash"
    assert "a block of 2,048 threads" in record.verdict.message


@pytest.mark.gpu
def test_a_gpu_refuses_as_the_emulator_does() -> None:
    kernel, y = Kernel(SOURCE, "fill"), torch.zeros(64, device="cuda")
    with pytest.raises(CandidateCrash, match="50,000 bytes"):
        kernel(y, grid=1, block=64, shared=50_000, opt_in=False)
    kernel(y, grid=1, block=64, shared=50_000)
    assert y.all()
    assert len(launching.taken("cuda")) == 1
    assert launching._runtime() is not None
