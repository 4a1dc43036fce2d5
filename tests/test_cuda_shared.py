"""Dynamic shared memory of kernels that are launched in several sizes."""

from __future__ import annotations

from typing import Any

import pytest

from kernelproof import cuda_launch, launching


def test_a_smaller_launch_takes_nothing_from_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    granted: list[int] = []
    monkeypatch.setattr(
        cuda_launch, "_allow_shared", lambda name, kernel, n, device: granted.append(n)
    )
    loaded = cuda_launch.Loaded.__new__(cuda_launch.Loaded)
    loaded.name, loaded.kernel, loaded.device, loaded.driver = "k", None, 0, driver
    loaded.kept, loaded.allowed = [], launching.SHARED_WITHOUT_OPT_IN
    for shared in (1000, 100_000, 60_000, 100_000, 120_000):
        assert loaded.config((1, 32, shared, None, False, False, True), 0)
    assert granted == [100_000, 120_000]
