"""Launches as text, and the command that runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelproof.emulate import commands, spec
from kernelproof.errors import CompileError, UsageError

SCALE = """// launch: scale<<<2, 32>>>(f32[50], out f32[50], 50)
extern "C" __global__ void scale(const float* x, float* y, int n) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i BELOW n) y[i] = 2 * x[i];
}
"""


def test_arguments() -> None:
    one = spec.parse(
        "f<a, 3><<<(2, 3), 64, 256>>>(f16[2, 3]=1.5, null, -4, u8[5] = range, out i32[2])"
    )
    assert (one.kernel, one.grid, one.block, one.shared) == ("f<a, 3>", (2, 3), 64, 256)
    half, null, number, counted, out = one.arguments()
    assert half.dtype == np.float16 and half.shape == (2, 3) and (half == 1.5).all()
    assert null is None and number == -4
    assert counted.tolist() == [0, 1, 2, 3, 4]
    assert not out.initialised


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("scale(1)", "is no launch"),
        ("f<<<1>>>()", "give grid, block"),
        ("f<<<1, 32>>>(x)", "a number, null, or a buffer"),
        ("f<<<1, 32>>>(f8[3])", "no dtype 'f8'"),
        ("f<<<1, 32>>>(f32[n])", "sizes are whole numbers"),
        ("f<<<1, 32>>>(f32[3] = some)", "filled with a number"),
        ("f<<<1, 32>>>(f32[-1])", "sizes of 0 or more"),
        ("f<<<1, 32>>>(f32[99999999999999])", "elements at the most"),
    ],
)
def test_bad_text_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec.parse(text)


@pytest.mark.parametrize(("sign", "code"), [("<", 0), ("<=", 1)])
def test_race_runs_the_launches_of_a_file(run_cli, tmp_path: Path, sign: str, code: int) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernel")
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("BELOW", sign))
    done = run_cli("race", str(path), "--json")
    assert done.returncode == code, done.stderr
    (launch,) = json.loads(done.stdout)["launches"]
    kinds = {(f["kind"], f["line"]) for f in launch["findings"]}
    assert kinds == ({("out of bounds", 4)} if code else set())


def test_race_without_a_launch_says_how_to_give_one(run_cli, tmp_path: Path) -> None:
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void k() {}\n')
    done = run_cli("race", str(path))
    assert done.returncode == 2
    assert "names no launch" in done.stderr and "--launch" in done.stderr


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("scale<<<2, 32>>>(f32[50], out f32[50])", "takes 3 arguments, 2 given; .* x, y, n"),
        ("scale<<<0, 32>>>(f32[50], out f32[50], 50)", "grid 0"),
        ("scale<<<1, 2048>>>(f32[50], out f32[50], 50)", "a block of 2,048 threads"),
        ("scale<<<1, 32, 999999>>>(f32[50], out f32[50], 50)", "no GPU grants more"),
        ("scale<<<1, 32>>>(f32[50], out f32[50], f32[1])", "4 bytes was given a buffer"),
    ],
)
def test_a_launch_that_does_not_fit_the_kernel_is_refused(
    tmp_path: Path, launch: str, words: str
) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernel")
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("BELOW", "<"))
    with pytest.raises(UsageError, match=words):
        commands.race(path, [launch])


def test_a_kernel_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernel")
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("BELOW", "<"))
    with pytest.raises(CompileError, match=r"scale\.cu has no kernel 'scaled'; it has scale"):
        commands.race(path, ["scaled<<<1, 32>>>(f32[50], out f32[50], 50)"])


def test_race_shows_what_the_compiler_says(run_cli, tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernel")
    path = tmp_path / "scale.cu"
    path.write_text(SCALE.replace("BELOW", "<").replace("y[i] =", "y[i] 3"))
    done = run_cli("race", str(path))
    assert done.returncode == 1
    assert "scale.cu(4): error" in done.stderr and "does not compile" in done.stderr


def test_race_of_a_candidate_says_what_judges_one(run_cli, tmp_path: Path) -> None:
    path = tmp_path / "candidate.py"
    path.write_text("")
    done = run_cli("race", str(path))
    assert done.returncode == 2 and "kernelproof check PROBLEM CANDIDATE" in done.stderr
