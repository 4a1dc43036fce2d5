"""Floors are measured once, and read by all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_bounds import floors as made_up

from kernelproof import floors
from kernelproof.errors import KernelproofError, UsageError
from kernelproof.floors import cache
from kernelproof.types import Floors


@pytest.fixture
def counted(monkeypatch: Any, tmp_path: Path) -> list[str]:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    calls: list[str] = []

    def measure(device: str) -> Floors:
        calls.append(device)
        return made_up(call=len(calls) * 1e-6)

    monkeypatch.setattr(cache, "_measure", measure)
    return calls


def test_measured_once_and_again_when_asked(counted: list[str]) -> None:
    assert floors.load("cpu") is None
    assert floors.get("cpu").call == 1e-6
    assert floors.get("cpu").call == 1e-6
    assert floors.load("cpu") == floors.get("cpu")
    assert floors.get("cpu", refresh=True).call == 2e-6
    assert counted == ["cpu", "cpu"]


def test_another_torch_or_thread_count_has_floors_of_its_own(
    counted: list[str], monkeypatch: Any
) -> None:
    floors.get("cpu")
    monkeypatch.setattr(cache, "names", lambda device: ("this CPU", "torch 99"))
    assert floors.load("cpu") is None


def test_a_damaged_file_is_measured_again(counted: list[str]) -> None:
    floors.get("cpu")
    cache._path("cpu").write_text("{")
    assert floors.get("cpu").call == 2e-6


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cuda:99"])
def test_a_device_that_is_not_there(counted: list[str], device: str) -> None:
    with pytest.raises(UsageError, match=device):
        floors.get(device)


def test_a_failed_measurement_says_why(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    monkeypatch.setattr(cache.sys, "executable", "/bin/false")
    with pytest.raises(KernelproofError, match="measuring the floors of cpu failed"):
        floors.get("cpu")
