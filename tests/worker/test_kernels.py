"""Kernel times out of a profiler's trace."""

from __future__ import annotations

from typing import Any

import pytest

from kernelproof.worker.kernels import grouped


def event(name: str, dur: float, grid: int = 8, cat: str = "kernel") -> dict[str, Any]:
    args = {"grid": [grid, 1, 1], "block": [128, 1, 1], "shared memory": 256}
    return {"cat": cat, "name": name, "dur": dur, "args": args}


def test_launches_alike_are_one_entry() -> None:
    events = [event("f(float*)", t) for t in (2.0, 3.0, 40.0, 3.0)]
    events += [event("f(float*)", 5.0, grid=16), event("f(float*)", 5.0, grid=16)]
    events += [event("aten::add", 9.0, cat="cpu_op"), {"name": "no category"}]
    small, large = grouped(events, calls=2)
    assert small == {
        "name": "f(float*)", "seconds": pytest.approx(3e-6), "count": 2, "grid": [8, 1, 1],
        "block": [128, 1, 1], "shared": 256,
    }  # fmt: skip
    assert (large["grid"], large["count"], large["seconds"]) == ([16, 1, 1], 1, pytest.approx(5e-6))
