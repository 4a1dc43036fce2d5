"""Tables, words and plots of docs/ladder.md from rows as the benchmark writes them."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from kernelproof import ladder
from kernelproof.report import ladder_words
from kernelproof.types import LadderResults

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "docs"))
import ladder_tables  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "report"))
from ladder_rows import RESULTS  # noqa: E402


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(path: Path) -> LadderResults:
        return RESULTS if path == ladder_tables.GPU else ladder_tables._NOTHING

    monkeypatch.setattr(ladder_tables, "_results", results)


@pytest.mark.usefixtures("measured")
def test_a_table_has_the_times_and_the_verdict_of_each_rung() -> None:
    text = ladder_tables.table("gated_recurrence")
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in text.splitlines()}
    for words in ("| pass | yes | 23.0 (23.1) | 1.96 | 12.0 us |", "| 100x |", "| 7.5 % (one"):
        assert words in lines["05_thread_per_column"]
    assert "**wrong**; right at the founding sizes" in lines["03_fixed_32_by_32"]
    assert "| - | - | - |" in lines["12_gate_on_rows"]
    assert "01_thread_per_head" not in text


@pytest.mark.usefixtures("measured")
def test_a_rung_is_told_in_words() -> None:
    text = ladder_tables.rung("gated_recurrence/05_thread_per_column")
    assert "on a GPU: pass, 23.0 (23.1)" in text
    assert "12.0 us device time, 7.5% of the floor; eager takes 100 times as long" in text
    text = ladder_tables.rung("gated_recurrence/03_fixed_32_by_32")
    assert "case one_step: 6 of 198 elements are NaN (only at index 32), right at" in text
    text = ladder_tables.rung("gated_recurrence/12_gate_on_rows")
    assert "wrong: the gate acts on the key axis (gate[i])." in text
    assert ladder_tables.rung("mla_kv/02_fp64") == ""


@pytest.mark.usefixtures("measured")
def test_a_plot_has_a_bar_where_there_is_a_time() -> None:
    tree = xml.fromstring(ladder_tables.plot("gated_recurrence"))
    bars = [e for e in tree.iter() if e.tag.endswith("rect") and e.get("x") == "210"]
    colours = ladder_tables.COLOURS
    assert [bar.get("fill") for bar in bars] == [colours["holds"], colours["pass"]]
    slow, fast = (float(bar.get("width") or 0) for bar in bars)
    assert slow > fast > 0
    assert ladder_tables.plot("mla_kv") == ""


def test_plots_on_disk_are_those_of_the_results() -> None:
    on_disk = {path.name: path.read_text() for path in (ROOT / "docs").glob("ladder-*.svg")}
    assert on_disk == ladder_tables.plots(), "run `python docs/generate.py --tables`"


@pytest.mark.parametrize("problem", ladder.problems())
def test_a_paragraph_has_no_figure_of_its_own(problem: str) -> None:
    """Figures come from the results; what else has digits are names: of rungs and sizes, in code,
    and of formats such as fp32."""
    text = re.sub(r"`[^`]+`", "", ladder_words.PLACE.sub("", ladder.learnt(problem)))
    text = re.sub(r"\b[A-Za-z]+\d+\b", "", text)
    assert len(text.split()) > 100
    assert re.findall(r"\d+", text) == []


@pytest.mark.parametrize("problem", ladder.problems())
def test_every_rung_was_judged_and_timed_on_the_gpu(problem: str) -> None:
    found = ladder_tables.rows(ladder_tables.GPU, problem)
    assert list(found) == [rung.name for rung in ladder.rungs(problem)]
    for rung in ladder.rungs(problem):
        row = found[rung.name]
        assert row.build is not None and row.unexpected == ""
        assert row.device is not None
        assert (row.status, row.evidence) == (rung.on_a_gpu or rung.expect, "device")
        if row.status == "pass":
            assert row.right_when_timed and row.limit_share is not None
