"""Which folders hold several candidates, and that none of them loses its status by another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelproof.batch import candidates_in, judge_each
from kernelproof.errors import CandidateNotFound, ProblemError

MODEL = "class ModelNew: pass\n"


def names(found: object) -> object:
    return None if found is None else [[p.name for p in part] for part in found]  # type: ignore


def test_a_candidate_is_not_a_folder_of_candidates(tmp_path: Path) -> None:
    assert candidates_in(tmp_path / "nothing") is None
    assert candidates_in(tmp_path) is None
    (tmp_path / "one.py").write_text(MODEL)
    assert candidates_in(tmp_path / "one.py") is None
    assert candidates_in(tmp_path) is None
    (tmp_path / "candidate.py").write_text(MODEL)
    (tmp_path / "two.py").write_text(MODEL)
    assert candidates_in(tmp_path) is None


def test_modules_and_folders_are_found_and_helpers_named(tmp_path: Path) -> None:
    for name in ("b.py", "a.py", "_private.py", ".hidden.py"):
        (tmp_path / name).write_text(MODEL)
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    for name, file in (("c", "candidate.py"), ("d", "only.py"), ("data", "table.csv")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text(MODEL)
    assert names(candidates_in(tmp_path)) == [["a.py", "b.py", "c", "d"], ["helper.py"]]


def test_faults_of_ours_and_lost_files_cost_one_status(capsys: pytest.CaptureFixture) -> None:
    class Record:
        status = "pass"

    def judge(path: Path) -> Record:
        if path.name == "gone":
            raise CandidateNotFound("no candidate 'gone'")
        if path.name == "fault":
            raise ZeroDivisionError
        return Record()

    kept: list = []
    paths = [Path(name) for name in ("a", "gone", "fault", "b")]
    records, missing = judge_each(paths, [Path("h.py")], judge, kept.append)  # type: ignore
    assert len(records) == len(kept) == 2 and missing == 2
    told = capsys.readouterr().err
    assert "h.py: left out" in told and "gone: no status: no candidate 'gone'" in told
    assert "fault: no status, by a fault of kernelproof" in told and "[4/4] b: pass" in told

    def broken(path: Path) -> Record:
        raise ProblemError("no such problem")

    with pytest.raises(ProblemError):
        judge_each(paths, [], broken, kept.append)  # type: ignore
