"""Kernels of sm_90a: right and without findings as they are; each planted bug is found."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from emulate_corpus import Bug
from hopper_corpus import BUGS, CLEAN, HOPPER, places, planted, run, text, value

from kernelproof.cuda import Kernel


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kernel", CLEAN)
def test_a_clean_kernel_is_right_and_gives_no_finding(kernel: str, seed: int | None) -> None:
    result, launch = run(kernel, text(kernel), seed)
    assert [str(f) for f in result.findings] == []
    assert result.unwritten == {}
    for index, want in launch.expected:
        got = value(launch.args[index])
        np.testing.assert_allclose(got, want, rtol=1e-3 if got.itemsize == 2 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("kernel", CLEAN)
def test_the_kernels_compile_for_their_gpu(kernel: str) -> None:
    assert Kernel(HOPPER / f"{kernel}.cu", kernel).compile("sm_90a")[:4] == b"\x7fELF"


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.kernel}-{b.kind}-{BUGS.index(b)}")
def test_a_planted_bug_is_found_with_its_line(bug: Bug) -> None:
    source, lines = planted(bug)
    result, _ = run(bug.kernel, source)
    found = [f for f in result.errors if f.kind == bug.kind]
    assert any(set(places(f)) & set(lines) for f in found), (
        f"expected {bug.kind} on line {lines}, found {[str(f) for f in result.findings]}"
    )
