"""The comparison with compute-sanitizer: reading its texts, and a reason for every difference."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulate_corpus as corpus
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sanitizer_compare as compare
from sanitizer_reasons import REASONS

ROOT = Path(__file__).parents[2]
H200 = json.loads((Path(__file__).parent / "fixtures" / "h200-sanitizer.json").read_text())["rows"]
STORED = json.loads((ROOT / "results" / "emulator" / "sanitizer.json").read_text())["rows"]
ENTRIES = {entry["id"]: entry for entry in compare.kernels()}


def reports(name: str, tool: str) -> list[tuple[str, list[int], int]]:
    found = compare.findings(H200[name]["tools"][tool]["text"])
    return [(f["message"], f["lines"], f["times"]) for f in found]


def row_of(name: str, *errors: tuple[str, int, int]) -> dict[str, Any]:
    found = [SimpleNamespace(kind=k, line=a, other_line=b) for k, a, b in errors]
    return compare.compared(ENTRIES[name], found, H200[name]["tools"])


def test_a_summary_of_nothing_is_no_finding() -> None:
    text = H200["block_sum-clean"]["tools"]["racecheck"]["text"]
    assert "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" in text
    assert compare.findings(text) == []


def test_a_summary_counts_where_no_report_tells_of_it() -> None:
    text = H200["block_sum-clean"]["tools"]["racecheck"]["text"]
    more = text.replace("0 hazards", "3 hazards")
    assert [f["lines"] for f in compare.findings(more)] == [[]]
    told = H200["producer-clean"]["tools"]["racecheck"]["text"]
    assert "SUMMARY: 1 hazard displayed" in told and len(compare.findings(told)) == 1


@pytest.mark.parametrize(
    ("name", "tool", "wanted"),
    [
        ("block_sum-00", "racecheck",
         [("Race reported between Read access and Write access", [5, 8], 1)]),
        ("block_sum-02", "racecheck",
         [("Race reported between Read access and Write access", [13, 15], 3)]),
        ("pipeline-42", "memcheck",
         [("Invalid __global__ read of size 16 bytes misaligned", [4], 18)]),
        ("stencil-32", "memcheck",
         [("Invalid __global__ read of size 4 bytes out of bounds", [7], 1)]),
        ("matmul-45", "initcheck",
         [("Uninitialized __global__ memory read of size 4 bytes", [14], 20)]),
        ("scan-52", "synccheck",
         [("Barrier error detected. Divergent thread(s) in warp.", [12], 20)]),
        ("block_sum-24", "initcheck",
         [("Host API memory access error at host access to an address of size 12 bytes", [], 1)]),
        ("lock-55", "memcheck", []),
    ],
)  # fmt: skip
def test_reports_are_read(name: str, tool: str, wanted: list[Any]) -> None:
    assert reports(name, tool) == wanted


def test_a_report_of_a_new_kind_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="Lost in the machine"):
        compare.findings("========= COMPUTE-SANITIZER\n========= Lost in the machine\n")


def test_what_counts_as_a_difference() -> None:
    assert row_of("block_sum-00", ("race", 8, 5))["differences"] == []
    alone = row_of("block_sum-00")["differences"]
    assert [(d["tool"], d["emulator"], d["sanitizer"]) for d in alone] == [
        ("racecheck", [], [5, 8])
    ]
    # The right finding and one more, which racecheck does not name.
    more = row_of("block_sum-00", ("race", 8, 5), ("race", 13, 0))["differences"]
    assert more[0]["emulator"] == [5, 8, 13] and more[0]["why"] == "to be looked at"
    # One line in common, but the planted one is named by the emulator alone.
    assert [d["tool"] for d in row_of("tensor_core-21", ("race", 12, 7))["differences"]] == [
        "racecheck"
    ]
    assert row_of("lock-55", ("deadlock", 4, 0))["differences"][0]["tool"] == ""


def test_values_are_counted_where_no_report_cuts_a_run_short() -> None:
    assert row_of("lock-27")["values"] == {"runs": 4, "wrong": 4}
    assert row_of("lock-55")["values"] == {"runs": 0, "wrong": 0}
    assert row_of("vector_copy-37")["values"] == {"runs": 3, "wrong": 0}


def test_the_gpu_ran_every_kernel_under_every_tool() -> None:
    assert H200.keys() == ENTRIES.keys() and len(ENTRIES) >= 30
    for seen in H200.values():
        assert set(seen["tools"]) == set(compare.TOOLS) and "failed" not in seen
        assert not any(run.get("skipped") for run in seen["tools"].values())


def test_every_difference_has_its_reason_and_every_reason_its_difference() -> None:
    found = {(row["id"], d["tool"]): (d["right"], d["why"])
             for row in STORED for d in row["differences"]}  # fmt: skip
    assert found == REASONS
    assert {row["id"] for row in STORED} == ENTRIES.keys()


@pytest.mark.parametrize("name", ["producer-clean", "transpose-35", "softmax-38", "producer-53"])
def test_the_stored_rows_are_what_the_emulator_finds(name: str) -> None:
    stored = next(row for row in STORED if row["id"] == name)
    result, _ = corpus.run(ENTRIES[name]["kernel"], ENTRIES[name]["source"])
    row = compare.compared(ENTRIES[name], result.errors, H200[name]["tools"])
    assert json.loads(json.dumps(row)) == stored


def test_another_order_shows_the_race_that_a_deadlock_hid() -> None:
    entry = ENTRIES["producer-53"]
    result, _ = corpus.run(entry["kernel"], entry["source"], seed=1)
    assert {(f.kind, f.line, f.other_line) for f in result.errors} >= {("race", 15, 8)}
