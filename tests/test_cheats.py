"""Known ways to game a judge, each with the status that it must get; docs/trust.md has the table.

A fixture is a file or folder ``<problem>__<what>`` in ``tests/candidates/cheats`` whose module has
``WAY`` (the row of the table), ``EXPECT`` and, where the way is about time, ``TIMED``; ``SAYS``
holds words that the message, the checks or the notes must have.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from test_candidates import FOLDER, constant, fixtures

from kernelproof import candidate, screen
from kernelproof.pipeline import Options, judge
from kernelproof.problem import shipped_operators
from kernelproof.report.text import detail
from kernelproof.types import Record

CHEATS = fixtures("cheats")
DOCS = Path(__file__).parents[1] / "docs" / "trust.md"
HONEST = ("cumsum__doubling.py", "cumsum__c_block_scan", "add_inplace_relu__c_vectors")


def judged(path: Path, problem: str | Path = "", **options) -> Record:
    timed = bool(constant(path, "TIMED"))
    given = {
        "device": "cpu", "seeds": 2, "call_timeout": 60.0, "baselines": ("eager",), "rounds": 8,
        "seconds": 3.0, **options,
    }  # fmt: skip
    if timed:
        given["level"] = "quick"
    return judge(problem or path.name.split("__")[0], path, timed=timed, options=Options(**given))


def said(record: Record) -> str:
    verdict = record.verdict
    checks = [f"{check.name}: {check.message}" for check in verdict.checks]
    return "\n".join([verdict.message, verdict.detail, *checks, *verdict.notes])


def parameters() -> list[ParameterSet]:
    return [
        pytest.param(p, id=p.stem, marks=[pytest.mark.xfail(strict=True, reason=str(why))]
                     if why else [])
        for p in CHEATS
        for why in [constant(p, "FINDING")]
    ]  # fmt: skip


@pytest.mark.parametrize("path", parameters())
def test_cheat_gets_its_status(path: Path) -> None:
    record = judged(path)
    assert record.status == constant(path, "EXPECT"), said(record)
    assert (record.timing is not None) == (
        record.status == "pass" and bool(constant(path, "TIMED"))
    )
    for words in constant(path, "SAYS") or ():  # type: ignore[attr-defined]
        assert words in said(record)


def test_a_cheat_that_passes_is_named() -> None:
    passing = [p for p in CHEATS if constant(p, "EXPECT") == "pass"]
    harmless = {p.stem for p in passing if not constant(p, "SAYS")}
    # A slow start gains nothing and need not be told.
    assert harmless == {"cumsum__slow_at_first"}


def test_a_cache_by_value_has_no_time_of_repeated_calls() -> None:
    record = judged(FOLDER / "cheats" / "cumsum__cache_by_value.py")
    assert record.timing is not None and record.timing.candidate.host is not None
    assert record.timing.candidate.warm is None, said(record)
    assert {ratio.clock for ratio in record.timing.ratios} == {"host"}


def test_the_table_has_a_row_for_each_way_and_names_each_fixture() -> None:
    text = DOCS.read_text()
    rows = [int(n) for n in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]
    assert rows == list(range(1, rows[-1] + 1)) and rows[-1] > 40
    for path in [*CHEATS, *(p for p in fixtures("gpu") if constant(p, "WAY"))]:
        (row,) = re.findall(rf"^\| {constant(path, 'WAY')} \|.*$", text, re.MULTILINE)
        assert path.stem in row, path.stem
    assert len({constant(p, "WAY") for p in CHEATS}) >= 30


@pytest.mark.parametrize("name", HONEST)
def test_honest_candidates_are_timed(name: str) -> None:
    path = FOLDER / "right" / name
    record = judge(
        name.split("__")[0], path, timed=True,
        options=Options(device="cpu", seeds=1, level="quick", baselines=("eager",), rounds=8,
                        seconds=3.0),
    )  # fmt: skip
    assert record.status == "pass", said(record)
    assert record.timing is not None and record.timing.candidate.host is not None
    (timed,) = [c for c in record.verdict.checks if c.name == "timed outputs"]
    assert timed.outcome == "pass" and "judged in full" in timed.message


def test_nothing_is_said_of_the_sources_of_honest_candidates() -> None:
    for path in fixtures("right"):
        assert screen.notes(candidate.load(path)) == [], path.stem
    for folder in shipped_operators().values():
        for name in ("cpu", "cuda"):
            assert screen.notes(candidate.load(folder / f"{name}.py")) == []


def test_a_problem_may_ask_for_own_kernels(tmp_path: Path) -> None:
    source = Path(__file__).parents[1] / "problems" / "linear_gelu.py"
    problem = tmp_path / "linear_gelu.py"
    problem.write_text(source.read_text() + "\nOWN_KERNELS = True\n")
    library = judged(FOLDER / "cheats" / "linear_gelu__c_falls_back", problem)
    assert library.status == "cheat" and "asks for own kernels" in library.verdict.message
    own = judged(FOLDER / "right" / "linear_gelu__c_serial_no_fma", problem)
    assert own.status == "pass", said(own)


def test_where_the_time_goes_is_in_the_record_and_in_the_report() -> None:
    record = judged(FOLDER / "cheats" / "rms_norm__c_calls_library")
    use = record.uses_library_kernels
    assert use is not None and use.claims == "cpp-c" and 0.5 < use.share <= 1
    assert any(name.startswith("aten::") for name in use.names)
    assert "of a call in aten::" in detail(record)
