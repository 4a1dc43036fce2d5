"""What has to be left out for CUDA is tried once and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.worker import probe


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The trials that were made; CUDA starts without files only."""
    made: list[tuple[str, ...]] = []

    def starts(without: tuple[str, ...]) -> bool:
        made.append(without)
        return "files" in without

    monkeypatch.setattr(probe, "_starts", starts)
    monkeypatch.setattr(probe, "home", lambda: tmp_path)
    return made


def found() -> tuple[str, ...]:
    probe.without_for_cuda.cache_clear()
    try:
        return probe.without_for_cuda()
    finally:
        probe.without_for_cuda.cache_clear()


def test_the_least_is_left_out_and_remembered(trials, tmp_path: Path) -> None:
    assert found() == ("files",)
    assert len(trials) > 1
    count = len(trials)
    assert found() == ("files",) and len(trials) == count
    (tmp_path / "cuda-limits.json").write_text("{")
    assert found() == ("files",) and len(trials) == 2 * count


def test_another_driver_is_tried_anew(trials, monkeypatch: pytest.MonkeyPatch) -> None:
    found()
    count = len(trials)
    monkeypatch.setattr(probe, "_key", lambda: "another")
    assert found() == ("files",) and len(trials) == 2 * count
