"""Dynamic shared memory of kernels that are launched in several sizes."""

from __future__ import annotations

from typing import Any

import pytest

from kernelproof import cuda_launch, launching
from kernelproof.errors import CandidateCrash


def loaded_with(static: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[int]]:
    """A kernel that declares ``static`` bytes, without a GPU; and what it opts in to."""
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    granted: list[int] = []
    monkeypatch.setattr(
        cuda_launch, "_allow_shared", lambda name, kernel, n, static, device: granted.append(n)
    )
    loaded = cuda_launch.Loaded.__new__(cuda_launch.Loaded)
    loaded.name, loaded.kernel, loaded.device, loaded.driver = "k", None, 0, driver
    loaded.kept = []
    loaded.count_shared(static)
    return loaded, granted


def how(shared: int, opt_in: bool = True) -> tuple[Any, ...]:
    return (1, 32, shared, None, False, False, opt_in)


def test_a_smaller_launch_takes_nothing_from_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, granted = loaded_with(0, monkeypatch)
    for shared in (1000, 100_000, 60_000, 100_000, 120_000):
        assert loaded.config(how(shared), 0)
    assert granted == [100_000, 120_000]


def test_declared_memory_counts_for_what_needs_the_opt_in(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, granted = loaded_with(20_000, monkeypatch)
    assert loaded.config(how(29_152, opt_in=False), 0) and granted == []
    with pytest.raises(CandidateCrash, match=r"29,153 bytes of dynamic and 20,000 of static"):
        loaded.config(how(29_153, opt_in=False), 0)
    assert loaded.config(how(29_153), 0) and granted == [29_153]
    with pytest.raises(CandidateCrash, match="no GPU grants more than 232,448"):
        loaded.config(how(212_449), 0)
    assert len(launching.taken()) == 2
