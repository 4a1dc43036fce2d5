"""Clean kernels give no finding; each planted bug is found, with its line."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from emulate_corpus import BUGS, CLEAN, Bug, places, planted, run, text


@pytest.mark.parametrize("kernel", CLEAN)
def test_a_clean_kernel_is_right_and_gives_no_finding(kernel: str) -> None:
    result, launch = run(kernel, text(kernel))
    assert [str(f) for f in result.findings] == []
    assert result.unwritten == {}
    for index, want in launch.expected:
        np.testing.assert_allclose(launch.args[index], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", CLEAN)
def test_another_order_of_threads_changes_nothing(kernel: str) -> None:
    result, launch = run(kernel, text(kernel), seed=3)
    assert [str(f) for f in result.findings] == []
    for index, want in launch.expected:
        np.testing.assert_allclose(launch.args[index], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bug", BUGS, ids=lambda b: f"{b.kernel}-{b.kind}-{BUGS.index(b)}")
def test_a_planted_bug_is_found_with_its_line(bug: Bug) -> None:
    source, lines = planted(bug)
    result, _ = run(bug.kernel, source)
    found = [f for f in result.errors if f.kind == bug.kind]
    assert any(set(places(f)) & set(lines) for f in found), (
        f"expected {bug.kind} on line {lines}, found {[str(f) for f in result.findings]}"
    )


def test_the_corpus_is_as_large_as_it_says() -> None:
    assert len(BUGS) >= 40
    assert len({bug.kernel for bug in BUGS}) >= 12
    assert {bug.kind for bug in BUGS} >= {
        "race", "out of bounds", "misaligned", "uninitialised", "absent lanes",
        "divergent barrier", "deadlock",
    }  # fmt: skip
