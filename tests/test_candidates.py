"""Right and wrong kernels, each with the verdict that it must get.

A fixture is a file or folder ``<problem>__<what>`` in ``tests/candidates/right`` or ``wrong`` whose
module has a constant ``EXPECT``; ``SAYS`` holds words that the message must have, ``LINE`` the line
of the source that it must name. ``FINDING`` tells how the present verdict is not the expected one;
the test then fails as soon as it no longer does.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from kernelproof.pipeline import Options, judge

FOLDER = Path(__file__).parent / "candidates"
# A hang must end by time-out, soon; an honest kernel needs far less even on a busy machine.
CALL_TIMEOUT = {"timeout": 3.0}


def entry(path: Path) -> Path:
    return path / "candidate.py" if path.is_dir() else path


def constant(path: Path, name: str) -> object:
    """A module-level constant, read without running the file; None where there is none."""
    try:
        tree = ast.parse(entry(path).read_text())
    except SyntaxError:
        # The fixture with the syntax error still says what it expects, on a line of its own.
        for line in entry(path).read_text().splitlines():
            if line.startswith(f"{name} = "):
                return ast.literal_eval(line.split("=", 1)[1].strip())
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    return None


def fixtures(kind: str) -> list[Path]:
    found = [p for p in sorted((FOLDER / kind).iterdir()) if "__" in p.name and p.suffix != ".pyc"]
    return [p for p in found if p.name != "__pycache__" and entry(p).is_file()]


def parameters(kind: str) -> list[ParameterSet]:
    """The fixtures as parameters; one with a FINDING must get another verdict than it expects."""
    return [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(strict=True, reason=str(why))] if why else [],
        )
        for path in fixtures(kind)
        for why in [constant(path, "FINDING")]
    ]


def judged(path: Path):
    problem = path.name.split("__")[0]
    expected = constant(path, "EXPECT")
    # Of a kernel that is emulated, the cases that take long are left to others.
    cases = constant(path, "ONLY") or ()
    options = Options(
        cases=tuple(cases),  # type: ignore[arg-type]
        device="cpu",
        seeds=2,
        seed=7,
        call_timeout=CALL_TIMEOUT.get(str(expected), 120.0),
    )
    return judge(problem, path, options=options), expected


@pytest.mark.parametrize("path", parameters("right"))
def test_right_candidate_passes(path: Path) -> None:
    record, expected = judged(path)
    assert expected == "pass"
    assert record.status == "pass", f"{record.verdict.message}\n{record.verdict.detail}"
    assert record.verdict.proof


@pytest.mark.parametrize("path", parameters("wrong"))
def test_wrong_candidate_gets_its_status(path: Path) -> None:
    record, expected = judged(path)
    verdict = record.verdict
    assert expected not in (None, "pass")
    assert record.status == expected, f"{verdict.message}\n{verdict.detail}"
    assert verdict.message
    line = constant(path, "LINE")
    if line is not None:
        said = f"{verdict.message}\n{verdict.detail}"
        assert any(f"{Path(s).name}:{line}" in said for s in record.candidate.sources), said
    for words in constant(path, "SAYS") or ():  # type: ignore[attr-defined]
        assert words in f"{verdict.message}\n{verdict.detail}", verdict.message


def test_there_are_fixtures_of_each_status() -> None:
    seen = {constant(path, "EXPECT") for path in fixtures("wrong")}
    assert {"wrong", "compile_error", "crash", "timeout", "unsupported"} <= seen
