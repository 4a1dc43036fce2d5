"""Sweeps over sizes: their text, and one from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelproof import cli, sweep
from kernelproof.errors import UsageError
from kernelproof.pipeline import Options

PROBLEM = """
import torch
from torch import nn

length = 8

class Model(nn.Module):
    def forward(self, x):
        return 2 * x

def get_inputs(rows=4):
    return [torch.randn(rows, length)]

CASES = {"default": {}, "other": {"rows": 3}}
"""
CANDIDATE = """
from torch import nn

class ModelNew(nn.Module):
    def forward(self, x):
        return x + x
"""


@pytest.mark.parametrize(
    "text, values",
    [
        ("S=64:1024:x4", (64, 256, 1024)),
        ("S=64:1000:x4", (64, 256)),
        ("n=1:7:+3", (1, 4, 7)),
        ("n=5:5:+1", (5,)),
    ],
)
def test_values(text: str, values: tuple[int, ...]) -> None:
    assert sweep.parse(text).values == values


@pytest.mark.parametrize(
    "text, why",
    [
        ("S", "no name"), ("=1:2:x2", "no name"), ("a-b=1:2:x2", "no name"),
        ("S=1:2", "two whole numbers and a step"), ("S=a:2:x2", "two whole numbers"),
        ("S=1:9:*2", "neither x nor +"), ("S=1:9:x", "neither x nor +"),
        ("S=9:1:x2", "no range"), ("S=0:8:x2", "no range"), ("S=1:9:x1", "does not go on"),
        ("S=1:9:+0", "does not go on"), ("S=1:9999:+1", "more than 64 sizes"),
    ],
)  # fmt: skip
def test_a_bad_sweep_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        sweep.parse(text)
    assert why in str(raised.value) and "S=64:65536:x2" in str(raised.value)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "twice.py").write_text(PROBLEM)
    (tmp_path / "added.py").write_text(CANDIDATE)
    return str(tmp_path / "twice.py"), str(tmp_path / "added.py")


def test_an_unknown_size_names_those_there_are(files: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="no size 'width'; it has length, rows"):
        sweep.run(*files, sweep.parse("width=1:2:x2"), Options())


def command(*arguments: str) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as raised:
        cli.main(arguments)
    return int(raised.value.code or 0)


def test_a_sweep_from_end_to_end(files: tuple[str, str], tmp_path: Path, capsys: Any) -> None:
    store = f"sqlite:///{tmp_path}/records.sqlite"
    common = ["--rounds", "2", "--seeds", "1", "--store", store, "--device", "cpu", "--json"]
    assert command("bench", *files, "--sweep", "rows=8:16:x2", *common) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["sweep"]["value"] for record in records] == [8, 16]
    assert len({record["sweep"]["id"] for record in records}) == 1
    moved = [record["timing"]["work"] for record in records]
    assert [one["read"] + one["written"] for one in moved] == [8 * 2 * 32, 8 * 2 * 64]
    assert all(0 < record["timing"]["limit"]["share"] < 2 for record in records)
    # All cases at the first size, the timed one at the others.
    assert {run["case"] for run in records[0]["verdict"]["runs"]} == {"default", "other"}
    assert {run["case"] for run in records[1]["verdict"]["runs"]} == {"default"}
    assert [b["name"] for b in records[0]["timing"]["baselines"]] == ["eager"]
    page = tmp_path / "page.html"
    assert command("report", "--store", store, "-o", str(page)) == 0
    assert "over rows</h2>" in page.read_text() and "sweep-1-bandwidth" in page.read_text()


def test_shrinking_would_undo_a_sweep(files: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="give one of them"):
        sweep.run(*files, sweep.parse("rows=2:4:x2"), Options(shrink_to=1000))


@pytest.mark.parametrize(
    "name, sizes, case_sizes", [("rows", (), (("rows", 2),)), ("length", (("length", 2),), ())]
)
def test_a_constant_of_the_file_or_a_keyword_of_a_case(
    name: str, sizes: object, case_sizes: object, files: tuple[str, str], monkeypatch: Any
) -> None:
    from kernelproof import pipeline

    asked: list[Options] = []

    def judge(problem: str, candidate: str, **given: Any) -> Any:
        asked.append(given["options"])
        raise UsageError("asked enough")

    monkeypatch.setattr(pipeline, "judge", judge)
    with pytest.raises(UsageError, match="asked enough"):
        sweep.run(*files, sweep.parse(f"{name}=2:4:x2"), Options())
    assert (asked[0].sizes, asked[0].case_sizes) == (sizes, case_sizes)


def test_a_size_at_which_the_reference_fails_is_left_out(
    files: tuple[str, str], monkeypatch: Any
) -> None:
    from kernelproof import pipeline

    real = pipeline.judge

    def judge(problem: str, candidate: str, **options: object) -> object:
        if dict(options["options"].case_sizes)["rows"] == 4:  # type: ignore[attr-defined]
            raise UsageError("does not fit in memory")
        return real(problem, candidate, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "judge", judge)
    options = Options(seeds=1, rounds=2, level="quick", device="cpu", baselines=("eager",))
    records, left_out = sweep.run(*files, sweep.parse("rows=2:8:x2"), options)
    assert [record.sweep.value for record in records if record.sweep] == [2, 8]
    assert left_out == ["rows=4: does not fit in memory"]
    text = sweep.text(records, left_out)
    assert "left out  rows=4" in text and "the first size was checked in full" in text
