"""Launches that ask for more than a block can have, in the emulator as on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from kernelproof import emulate, launching
from kernelproof.cuda import Kernel
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.errors import CandidateCrash, CompileError
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
    launching.check("k", (1,), (1024,), 29_152, False, 20_000)
    launching.check("k", (1,), (1024,), 212_448, True, 20_000)
    launching.check("k", (1,), (1024,), 49_152, False, 65_536)  # as ptxas takes for sm_90a
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


BOTH = """
extern "C" __global__ void fill(float* y) {
  __shared__ float kept[5000];
  extern __shared__ float scratch[];
  for (int i = threadIdx.x; i < 5000; i += blockDim.x) kept[i] = i;
  scratch[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = scratch[threadIdx.x] + kept[4999 - threadIdx.x];
}
"""


def test_the_emulator_counts_what_a_kernel_declares() -> None:
    kernel, y = Kernel(BOTH, "fill"), torch.zeros(64)
    with standing_in(Recorder()):
        kernel(y, grid=1, block=64, shared=29_152, opt_in=False)
        assert y[0] == 5000
        with pytest.raises(CandidateCrash, match="29,153 bytes of dynamic and 20,000 of static"):
            kernel(y, grid=1, block=64, shared=29_153, opt_in=False)
        kernel(y, grid=1, block=64, shared=29_153)
        with pytest.raises(CandidateCrash, match="no GPU grants more than 232,448"):
            kernel(y, grid=1, block=64, shared=212_449)
    assert len(launching.taken()) == 2
    with pytest.raises(ValueError, match="212,449 bytes of dynamic and 20,000 of static"):
        emulate.launch(BOTH, "fill", 1, 64, [y.numpy()], shared=212_449)


def test_the_emulator_refuses_declarations_that_the_assembler_refuses() -> None:
    large, y = BOTH.replace("kept[5000]", "kept[12289]"), torch.zeros(64)
    with standing_in(Recorder()), pytest.raises(CompileError, match="declares 49,156 bytes"):
        Kernel(large, "fill")(y, grid=1, block=64, shared=256)
    with pytest.raises(CompileError, match="sm_80"):
        Kernel(large, "fill").compile("sm_80")
    # Targets of one very architecture take them.
    emulate.launch(large, "fill", 1, 64, [y.numpy()], shared=256, arch="compute_90a")
    assert y[0] == 5000 and Kernel(large, "fill").compile("sm_90a")
    larger = BOTH.replace("kept[5000]", "kept[58113]")
    with pytest.raises(CompileError, match="takes at most 232,448"):
        emulate.launch(larger, "fill", 1, 64, [y.numpy()], shared=256, arch="compute_90a")
    with pytest.raises(CompileError):
        Kernel(larger, "fill").compile("sm_90a")


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
def test_a_gpu_counts_what_a_kernel_declares() -> None:
    kernel, y = Kernel(BOTH, "fill"), torch.zeros(64, device="cuda")
    kernel(y, grid=1, block=64, shared=29_152, opt_in=False)
    with pytest.raises(CandidateCrash, match="29,153 bytes of dynamic and 20,000 of static"):
        kernel(y, grid=1, block=64, shared=29_153, opt_in=False)
    # The opt-in is made for what is less than 48 KiB by itself.
    for shared in (29_153, 48_000, 100_000, 212_448):
        y.zero_()
        kernel(y, grid=1, block=64, shared=shared)
        torch.cuda.synchronize()
        assert y[0] == 5000
    with pytest.raises(CandidateCrash, match="no GPU grants more than 232,448"):
        kernel(y, grid=1, block=64, shared=212_449)
    assert len(launching.taken("cuda")) == 2
    if torch.cuda.get_device_capability() != (9, 0):
        return
    large = Kernel(BOTH.replace("kept[5000]", "kept[16384]"), "fill")
    for shared, opt_in in ((256, False), (49_152, False), (166_912, False), (166_912, True)):
        y.zero_()
        large(y, grid=1, block=64, shared=shared, opt_in=opt_in)
        torch.cuda.synchronize()
        assert y[0] == 5000


@pytest.mark.gpu
def test_a_gpu_refuses_as_the_emulator_does() -> None:
    kernel, y = Kernel(SOURCE, "fill"), torch.zeros(64, device="cuda")
    with pytest.raises(CandidateCrash, match="50,000 bytes"):
        kernel(y, grid=1, block=64, shared=50_000, opt_in=False)
    kernel(y, grid=1, block=64, shared=50_000)
    assert y.all()
    assert len(launching.taken("cuda")) == 1
    assert launching._runtime() is not None
