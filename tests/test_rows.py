"""docs/cases.md: every row is there, and every case that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernelproof import problem

PAGE = Path(__file__).parents[1] / "docs" / "cases.md"
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
COUNT = 58


def named(cell: str) -> list[tuple[str, str]]:
    """(problem, case) pairs of a cell such as ``p: a, b (a remark); q: c``; [] for "none: ..."."""
    if cell.startswith("none: "):
        return []
    bare = re.sub(r"\s*\([^)]*\)", "", cell)
    pairs = []
    for part in bare.split(";"):
        name, _, cases = part.strip().partition(": ")
        pairs += [(name, case.strip()) for case in cases.split(",")]
    return pairs


ROWS = {int(number): cell.strip() for number, _, _, cell in ROW.findall(PAGE.read_text())}


def test_all_rows_are_there_once() -> None:
    assert list(ROWS) == list(range(1, COUNT + 1))
    assert len(ROW.findall(PAGE.read_text())) == COUNT


@pytest.mark.parametrize("row", range(1, COUNT + 1))
def test_a_row_names_cases_that_exist_or_says_why_not(row: int) -> None:
    cell = ROWS[row]
    pairs = named(cell)
    assert pairs or len(cell) > len("none: ") + 5, cell
    known = problem.known_problems()
    for name, case in pairs:
        assert name in known, f"{name!r} in row {row}"
        cases = [c.name for c in problem.load(name).problem.cases]
        assert case in cases, f"{name} has no case {case!r}: {cases}"


def test_the_parser_sees_each_name() -> None:
    assert named("p: a, b (a remark, with a comma; and more); q: c") == [
        ("p", "a"), ("p", "b"), ("q", "c"),
    ]  # fmt: skip
    assert named("none: a time") == []
