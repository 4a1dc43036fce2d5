"""The board, two records side by side, records out and in: from records that are made up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_store import numbered

from kernelproof import board, cli
from kernelproof.errors import UsageError
from kernelproof.store import Store
from kernelproof.timing.stats import series
from kernelproof.types import Contestant, Ratio, Record, Timing

MICRO = 1e-6


def timed(number: int, name: str, ratio: tuple[float, float, float], **changes) -> Record:
    """A record of ``name`` with this ratio to eager and its interval."""
    one = numbered(number)
    middle, low, high = ratio
    answer = "FASTER" if low > 1 else "SLOWER" if high < 1 else "UNCLEAR"
    beside = Ratio(
        baseline="eager", clock="host", ratio=middle, low=low, high=high, answer=answer
    )  # fmt: skip
    mine = Contestant(name=name, host=series([10 * MICRO / middle], [0]))
    eager = Contestant(name="eager", host=series([10 * MICRO], [0]))
    timing = Timing(
        case="default", device="cpu", threads=1, candidate=mine, baselines=(eager,), floor=None,
        ratios=(beside,),
    )  # fmt: skip
    who = one.candidate.model_copy(update={"name": name, "digest": f"digest of {name}"})
    return one.model_copy(update={"candidate": who, "timing": timing, **changes})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'r.sqlite'}"


def filled(url: str, *records: Record) -> str:
    for record in records:
        Store(url).add(record)
    return url


def test_ranks_are_shared_by_what_cannot_be_told_apart(url: str) -> None:
    filled(
        url, timed(1, "slow", (0.5, 0.4, 0.6)), timed(2, "best", (2.0, 1.8, 2.2)),
        timed(3, "tied", (1.9, 1.7, 2.1)), timed(4, "next", (1.5, 1.4, 1.75)), numbered(5),
    )  # fmt: skip
    rows = board.board(store=url)
    # "next" overlaps with "tied", but not with the first of the rank.
    assert [(r.rank, r.candidate) for r in rows] == [
        (1, "best"), (1, "tied"), (3, "next"), (4, "slow"),
    ]  # fmt: skip
    assert rows[0].time[0] == pytest.approx(5 * MICRO)
    assert board.board(store=url, baseline="where") == ()
    assert board.board("another", store=url) == ()


def test_the_newest_record_of_a_candidate_counts(url: str) -> None:
    filled(url, timed(2, "a", (1.0, 0.9, 1.1)), timed(1, "a", (5.0, 4.9, 5.1)))
    (row,) = board.board(store=url)
    assert row.ratio.ratio == 1.0 and row.record_id == "0002"


def test_machines_and_problems_are_apart(url: str) -> None:
    one = timed(1, "a", (2.0, 1.9, 2.1))
    elsewhere = one.environment.model_copy(update={"cpu": "another"})
    edited = one.problem.model_copy(update={"digest": "edited"})
    filled(
        url, one, one.model_copy(update={"id": "x", "environment": elsewhere}),
        one.model_copy(update={"id": "y", "problem": edited}),
    )  # fmt: skip
    assert [row.rank for row in board.board(store=url)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("ratio", "answer"),
    [((3.0, 2.5, 3.5), "FASTER"), ((1.0, 0.9, 1.2), "SLOWER"), ((2.1, 1.0, 3.0), "SAME")],
)
def test_two_records(url: str, ratio, answer: str) -> None:
    filled(url, timed(1, "a", (2.0, 1.8, 2.2)), timed(2, "b", ratio))
    found = board.compare("0001", "0002", store=url)
    assert (found.faster, found.by) == (answer, "eager")
    assert "sources" in found.differs and "torch" not in found.differs


def test_what_cannot_be_compared_is_said(url: str) -> None:
    one = timed(1, "a", (2.0, 1.8, 2.2))
    elsewhere = one.environment.model_copy(update={"cpu": "another"})
    other = one.problem.model_copy(update={"digest": "edited"})
    filled(
        url, one, one.model_copy(update={"id": "2", "environment": elsewhere}),
        one.model_copy(update={"id": "3", "problem": other}),
        one.model_copy(update={"id": "4", "timing": None}),
    )  # fmt: skip
    for id_, words in (("2", "they were timed on"), ("3", "different problems"), ("4", "not both")):
        found = board.compare("0001", id_, store=url)
        assert found.faster is None and words in found.why_not
    with pytest.raises(UsageError, match="no record begins with 'zz'"):
        board.compare("0001", "zz", store=url)


def test_records_go_out_and_in(url: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    def play(*words: str) -> tuple[int, str, str]:
        try:
            cli.main([*words, "--store", target])
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    path, target = tmp_path / "e.json", url
    filled(url, timed(1, "a", (2.0, 1.8, 2.2)), timed(2, "b", (3.0, 2.8, 3.2)))
    assert play("export", str(path))[1] == f"2 records written to {path}\n"
    assert "cannot write" in play("export", str(tmp_path / "no" / "e.json"))[2]
    assert play("export", str(path), "--problem", "another")[0] == 2
    target = f"sqlite:///{tmp_path / 'other.sqlite'}"
    assert play("board")[0] == 2
    assert play("import", str(path))[1] == "2 records added, 0 there already\n"
    assert play("import", str(path))[1] == "0 records added, 2 there already\n"
    code, out, _ = play("board")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["1", "b"], ["2", "a"],
    ]  # fmt: skip
    assert json.loads(play("board", "--json")[1])["rows"][0]["rank"] == 1
    code, out, _ = play("compare", "0001", str(path))
    assert code == 0 and out.splitlines()[0].split() == ["a:", "a", "b:", "a"]
    assert "b is SAME: by the ratios to eager" in out


def test_an_export_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch) -> None:
    url = f"sqlite:///{tmp_path / 's.sqlite'}"
    Store(url).add(numbered(1))
    file = tmp_path / "out.json"
    file.write_text("older")

    def full(path: Path, text: str, **how: str) -> None:
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match="No space left on device"):
        board.export(file, store=url)
    assert file.read_text() == "older" and len(list(tmp_path.iterdir())) == 2
