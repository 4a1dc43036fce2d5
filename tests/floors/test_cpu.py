"""What is measured on a CPU is a rate that the CPU can have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelproof.floors import cpu


def test_every_field_is_measured(monkeypatch: Any) -> None:
    monkeypatch.setattr(cpu, "_SECONDS", 0.005)
    monkeypatch.setattr(cpu, "_LARGEST", 32 << 20)
    monkeypatch.setattr(cpu, "_ORDERS", (64, 128))
    before = torch.get_num_threads()
    found = cpu.measure(2)
    assert torch.get_num_threads() == before
    assert 0 < found["call"] < 1e-3
    sizes = [one.size for one in found["bandwidth"]]
    assert sizes == sorted(sizes) and len(sizes) >= 2
    for one in found["bandwidth"]:
        # From a slow disk to faster than any register file.
        assert all(1e8 < rate < 1e14 for rate in (one.read, one.write, one.copied))
    assert {"fp32", "fp64"} <= set(found["matrix"]) and set(found["vector"]) == {"fp32", "fp64"}
    assert all(1e7 < rate < 1e15 for rate in found["matrix"].values())
    assert any("streaming over" in note for note in found["notes"]) == (
        sizes[-1] < 4 * found["cache"]
    )


def test_a_dtype_without_products_is_named() -> None:
    def make(order: int) -> Any:
        raise RuntimeError("no such product\nmore")

    assert cpu._product_rate(make, 1) == "no such product"


def test_an_error_in_a_thread_is_raised() -> None:
    def run(number: int) -> None:
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        cpu._together(2, run)
