"""Launches as text, and the command that runs them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kernelproof.emulate import spec
from kernelproof.errors import UsageError

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
