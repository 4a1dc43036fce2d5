"""Every rung of the ladder gets the status that it says; without a GPU at small sizes, emulated."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from kernelproof import ladder
from kernelproof.candidate import load
from kernelproof.errors import UsageError
from kernelproof.pipeline import Options, judge

RUNGS = [rung for problem in ladder.problems() for rung in ladder.rungs(problem)]
INLINE = [rung for rung in RUNGS if (rung.folder / "load_inline.py").is_file()]


def name(rung: ladder.Rung) -> str:
    return f"{rung.problem}/{rung.name}"


@pytest.mark.parametrize("rung", RUNGS, ids=name)
def test_rung_gets_its_status(rung: ladder.Rung) -> None:
    options = Options(device="cpu", level="quick", seeds=1, seed=7, cases=rung.small)
    record = judge(rung.problem, rung.candidate, options=options)
    assert ladder.unexpected(rung, record) == ""
    assert record.verdict.evidence == ("emulated" if rung.emulated else "cpu")


def test_the_ladders_are_complete() -> None:
    """As many designs as the founding problems have, the shipped operator last."""
    assert ladder.problems() == ["gated_recurrence", "int8_attention", "mla_kv"]
    for problem, designs in {"mla_kv": 16, "gated_recurrence": 12, "int8_attention": 10}.items():
        found = ladder.rungs(problem)
        assert sorted({int(r.name[:2]) for r in found}) == [*range(1, designs + 2)]
        assert [r.name for r in found if r.candidate == "cuda"] == [found[-1].name]
        assert {r.expect for r in found} == {"pass", "wrong"}
        assert all((r.folder / "README.md").is_file() for r in found)
    assert len(INLINE) >= 3


@pytest.mark.parametrize("rung", INLINE, ids=name)
def test_the_load_inline_form_is_of_the_same_kernel(rung: ladder.Rung) -> None:
    found = load(rung.folder / "load_inline.py")
    assert found.language == "cuda-inline"
    assert set(found.sources) == {"kernel.cu", "load_inline.py"}
    text = (rung.folder / "load_inline.py").read_text()
    kernel = (rung.folder / "kernel.cu").read_text()
    (launched,) = re.findall(r"(\w+)<<<", text)
    assert re.search(rf"__global__ void {launched}\(", kernel)


def test_an_unknown_ladder_is_named() -> None:
    with pytest.raises(UsageError, match=r"no ladder for 'cumsum'; there are gated_recurrence"):
        ladder.rungs("cumsum")


def test_a_deviation_is_told(tmp_path: Path) -> None:
    rung = next(r for r in RUNGS if r.name == "10_mask_after_softmax")
    options = Options(device="cpu", level="quick", seeds=1, seed=7, cases=("two_of_five",))
    record = judge(rung.problem, rung.candidate, options=options)
    other = ladder.Rung(rung.problem, rung.name, rung.folder, rung.candidate, "pass")
    assert "is wrong, not pass" in ladder.unexpected(other, record)
    silent = ladder.Rung(
        rung.problem, rung.name, rung.folder, rung.candidate, "wrong", ("no such words",)
    )
    assert "lacks ['no such words']" in ladder.unexpected(silent, record)


def test_a_climb_judges_every_rung(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [r for r in RUNGS if r.name in ("02b_no_opt_in", "10_mask_after_softmax")]
    monkeypatch.setattr(ladder, "rungs", lambda problem: chosen)
    seen: list[str] = []
    found = ladder.climb("int8_attention", "cpu", lambda what, done, total: seen.append(what))
    assert [rung for rung, _ in found] == chosen
    assert [ladder.unexpected(*pair) for pair in found] == ["", ""]
    assert seen == [rung.name for rung in chosen]


def test_demo_names_the_ladders_there_are(run_cli: Callable[..., CompletedProcess[str]]) -> None:
    done = run_cli("demo", "--ladder", "cumsum")
    assert done.returncode == 2
    assert "no ladder for 'cumsum'; there are gated_recurrence, int8_attention" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rung", INLINE, ids=name)
def test_load_inline_form_gets_its_status(rung: ladder.Rung) -> None:
    options = Options(device="cpu", level="quick", seeds=1, seed=7, cases=rung.small)
    record = judge(rung.problem, rung.folder / "load_inline.py", options=options)
    assert record.status == rung.expect, record.verdict.message
    assert record.verdict.evidence == "emulated"
    if "cudaFuncSetAttribute" in rung.says:
        assert "cudaFuncSetAttribute" in record.verdict.message


@pytest.mark.gpu
@pytest.mark.parametrize("rung", RUNGS, ids=name)
def test_rung_gets_its_status_on_a_gpu(rung: ladder.Rung) -> None:
    record = judge(rung.problem, rung.candidate, options=Options(seeds=2, seed=7))
    assert ladder.unexpected(rung, record) == ""
    assert record.verdict.evidence == "device"
    if rung.holds:
        alone = Options(seeds=2, seed=7, cases=rung.holds, level="quick")
        assert judge(rung.problem, rung.candidate, options=alone).status == "pass"


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("rung", INLINE, ids=name)
def test_load_inline_form_gets_its_status_on_a_gpu(rung: ladder.Rung) -> None:
    record = judge(rung.problem, rung.folder / "load_inline.py", options=Options(seeds=2, seed=7))
    assert record.status == rung.expect, record.verdict.message
    for words in ("49,152", "cudaFuncSetAttribute") if "49,152" in rung.says else ():
        assert words in record.verdict.message
