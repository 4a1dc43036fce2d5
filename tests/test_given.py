"""Candidates that are given as text: what cannot be a file is refused, and costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.candidate import load
from kernelproof.errors import CandidateNotFound, UsageError
from kernelproof.given import placed

TEXT = "import torch\nclass ModelNew: ...\n"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path / "home"))


def test_text_is_a_file_or_a_folder() -> None:
    assert placed("s", TEXT, None, "mine", "").read_text() == TEXT
    root = placed("s", TEXT, {"kernel.cu": "x"}, "mine", "")
    assert sorted(path.name for path in root.iterdir()) == ["candidate.py", "kernel.cu"]


@pytest.mark.parametrize(
    ("text", "files", "name"),
    [
        ("x = '\ud800'\n", None, "mine"),
        (TEXT, {"\ud800.h": ""}, "mine"),
        (TEXT, {"a\0.h": ""}, "mine"),
        (TEXT, {"a" * 300 + ".h": ""}, "mine"),
        (TEXT, {"a": "", "a/b.h": ""}, "mine"),
        (TEXT, {"../a.h": ""}, "mine"),
        (TEXT, {"candidate.py": ""}, "mine"),
        (TEXT, None, "m" * 300),
        (TEXT, None, "../mine"),
    ],
)
def test_what_is_no_file_is_refused(text: str, files: dict[str, str] | None, name: str) -> None:
    with pytest.raises(UsageError):
        placed("s", text, files, name, "")


def test_a_file_of_another_kind_is_no_candidate(tmp_path: Path) -> None:
    """Its text would be shown as the source of an attempt."""
    (tmp_path / "secrets.txt").write_text("secret")
    with pytest.raises(CandidateNotFound, match="is no Python file"):
        load(tmp_path / "secrets.txt")
