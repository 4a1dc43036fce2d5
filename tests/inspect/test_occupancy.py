"""Occupancy against NVIDIA's own calculator, and the table of devices."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

from kernelproof.cuda import header_folders
from kernelproof.errors import UsageError
from kernelproof.inspect import devices
from kernelproof.inspect.occupancy import occupancy

TABLE = Path(__file__).with_name("occupancy.csv")


def compared(text: str) -> int:
    """Compares every row of a table; returns how many have at least one block."""
    gpus = {c.arch: c for c in devices.capabilities()}
    launched = 0
    for raw in csv.DictReader(text.splitlines()):
        row = {name: int(value) for name, value in raw.items()}
        got = occupancy(
            gpus[row["arch"]], threads=row["threads"], registers=row["registers"],
            static_shared=row["static"], dynamic_shared=row["dynamic"], barriers=row["barriers"],
            opted_in=bool(row["opted_in"]),
        )  # fmt: skip
        seen = (got.blocks, got.limits["registers"], got.limits["shared memory"],
                got.limits["warps"])  # fmt: skip
        assert seen == (row["blocks"], row["regs"], row["shared"], row["warps"]), raw
        if "barriers" in got.limits:
            assert got.limits["barriers"] == row["bars"], raw
        launched += got.blocks > 0
    return launched


def test_it_agrees_with_the_kept_answers_of_cuda_occupancy() -> None:
    text = TABLE.read_text()
    assert len(text.splitlines()) > 2000
    assert compared(text) > 1000


def test_the_kept_answers_are_those_of_the_header_on_this_machine() -> None:
    folders = [Path(folder) for folder in (*header_folders(), "/usr/local/cuda/include")]
    found = [folder for folder in folders if (folder / "cuda_occupancy.h").is_file()]
    if not found:
        pytest.skip("no cuda_occupancy.h here")
    spec = importlib.util.spec_from_file_location("table", TABLE.with_name("occupancy_table.py"))
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    made = table.answers(found[0], devices.capabilities(), table.launches())
    assert made == TABLE.read_text()


def test_a_wrong_granularity_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelproof.inspect.occupancy.REGISTER_GRANULARITY", 512)
    with pytest.raises(AssertionError):
        compared(TABLE.read_text())


def test_limiters_that_tie_are_both_named() -> None:
    gpu = devices.find("h200").capability
    got = occupancy(gpu, threads=256, registers=64, static_shared=56 * 1024)
    assert (got.blocks, got.limiter, got.share) == (4, "registers and shared memory", 0.5)


def test_a_launch_that_would_be_refused_has_no_blocks() -> None:
    gpu = devices.find("h200").capability
    assert occupancy(gpu, threads=1025, registers=16).blocks == 0
    assert occupancy(gpu, threads=128, registers=16, dynamic_shared=64 << 10).blocks == 3
    refused = occupancy(gpu, threads=128, registers=16, dynamic_shared=64 << 10, opted_in=False)
    assert (refused.blocks, refused.limiter) == (0, "shared memory")
    with pytest.raises(ValueError, match="0 threads"):
        occupancy(gpu, threads=0, registers=16)


@pytest.mark.parametrize(
    ("name", "found", "target"),
    [("H200", "h200", "sm_90a"), ("sm_80", "a100", "sm_80"), ("NVIDIA B200", "b200", "sm_100a"),
     ("sm_120a", "rtx5090", "sm_120a"), ("RTX 4090", "rtx4090", "sm_89")],
)  # fmt: skip
def test_a_gpu_is_found_by_name_or_architecture(name: str, found: str, target: str) -> None:
    device = devices.find(name)
    assert (device.name, device.target) == (found, target)


def test_an_unknown_gpu_is_told_what_there_is() -> None:
    with pytest.raises(
        UsageError, match=r"no GPU 'v100' \(did you mean 'h100'\?\); there are a100, .*sm_90"
    ):
        devices.find("v100")
