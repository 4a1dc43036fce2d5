"""Tables, words and plots of docs/ladder.md from rows as the benchmark writes them."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import ladder_tables  # noqa: E402

PASSED = {
    "problem": "gated_recurrence", "rung": "05_thread_per_column", "form": "candidate",
    "status": "pass", "evidence": "device", "message": "", "compat": True, "bits": 23.04,
    "reference_bits": 23.11, "ratio": 1.96, "device": 1.2e-5, "host": 2.0e-5,
    "eager_device": 1.2e-3, "floor_device": 9e-7, "build": 0.31,
    "limit": "empty launch", "limit_share": 0.075,
}  # fmt: skip
HOLDS = PASSED | {
    "rung": "03_fixed_32_by_32", "status": "wrong", "founding": "pass", "device": 3e-5,
    "message": "case one_step: output[0, 0, 0, 32] is nan, expected 2.6; the error is NaN times "
    "that of an honest computation (limit 12). 6 of 198 elements are NaN (only at index 32): never "
    "written (outputs are filled with NaN beforehand)",
}  # fmt: skip
SLIP = PASSED | {
    "rung": "12_gate_on_rows", "status": "wrong", "device": None, "bits": 1.4,
    "message": "case founding: y is 1, expected 2; the error is 4e+06 times that of an honest "
    "computation (limit 12). It looks as if the gate acts on the key axis (gate[i]); here it acts "
    "on the value axis. Smallest failing case: steps=2",
}  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"machine": "a GPU", "torch": "2", "date": "today", "rows": [PASSED, HOLDS, SLIP]}

    def results(path: Path) -> dict[str, Any]:
        return found if path == ladder_tables.GPU else {"rows": []}

    monkeypatch.setattr(ladder_tables, "_results", results)


@pytest.mark.usefixtures("measured")
def test_a_table_has_the_times_and_the_verdict_of_each_rung() -> None:
    text = ladder_tables.table("gated_recurrence")
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    for words in ("| pass | yes | 23.0 (23.1) |", "12.0 us", "| 100 |", "| 8% (empty launch) |"):
        assert words in lines["05_thread_per_column"]
    assert "**wrong**; right at the founding sizes" in lines["03_fixed_32_by_32"]
    assert "| - |" in lines["12_gate_on_rows"]
    assert "01_thread_per_head" not in text


@pytest.mark.usefixtures("measured")
def test_a_rung_is_told_in_words() -> None:
    assert "on a GPU: pass, 23.0 (23.1)" in ladder_tables.rung(
        "gated_recurrence/05_thread_per_column"
    )
    text = ladder_tables.rung("gated_recurrence/03_fixed_32_by_32")
    assert "case one_step: 6 of 198 elements are NaN (only at index 32), right at" in text
    text = ladder_tables.rung("gated_recurrence/12_gate_on_rows")
    assert "wrong: the gate acts on the key axis (gate[i])." in text
    assert ladder_tables.rung("mla_kv/02_fp64") == ""


@pytest.mark.usefixtures("measured")
def test_a_plot_has_a_bar_where_there_is_a_time() -> None:
    tree = xml.fromstring(ladder_tables.plot("gated_recurrence"))
    bars = [e for e in tree.iter() if e.tag.endswith("rect") and e.get("fill") != "#ffffff"]
    colours = ladder_tables.COLOURS
    assert [bar.get("fill") for bar in bars] == [colours["holds"], colours["pass"]]
    slow, fast = (float(bar.get("width") or 0) for bar in bars)
    assert slow > fast > 0
    assert ladder_tables.plot("mla_kv") == ""


def test_plots_on_disk_are_those_of_the_results() -> None:
    on_disk = {path.name: path.read_text() for path in (ROOT / "docs").glob("ladder-*.svg")}
    assert on_disk == ladder_tables.plots(), "run `python docs/generate.py --tables`"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("case a: the launch of k was refused, so it did not run: it asks for 9 bytes; more: raise "
         "the limit", "the launch of k was refused, so it did not run: it asks for 9 bytes; more"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12). The error "
         "is as large as that of tf32: look", "the error is as large as that of tf32"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12). The "
         "expected ones times a factor (0 to 1). First look at", "the expected values times a "
         "factor (0 to 1)"),
        ("case a: y is 1; the error is 9 times that of an honest computation (limit 12)",
         "the error is 9 times the allowance (case a)"),
    ],
)  # fmt: skip
def test_messages_in_short(message: str, words: str) -> None:
    assert ladder_tables.words({"message": message}) == words
