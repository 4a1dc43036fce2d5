"""Other candidates to time beside: found, refused, and not judged."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_candidates import FOLDER
from test_types import record

from kernelproof import candidate, contestants, environment, pipeline, problem, rivals
from kernelproof.ahead import Ahead
from kernelproof.errors import CandidateError, UsageError
from kernelproof.store import Store
from kernelproof.subject import payload_of
from kernelproof.timing.stats import series
from kernelproof.types import Contestant, Record, Timing

HONEST = FOLDER / "right" / "rms_norm__norm_of_row.py"
WRONG = FOLDER / "wrong" / "rms_norm__centred.py"


def found(vs: list[str], store: str | None = None, device: str = "cpu"):
    reference = problem.load("rms_norm")
    return rivals.find(vs, reference, reference.problem.cases[0], device, store)


def kept(path: Path, seconds: float, number: int, **changes) -> Record:
    """A record of the candidate at ``path`` that took ``seconds`` on this machine."""
    reference, made = problem.load("rms_norm").problem, environment.capture()
    one = Contestant(name="x", host=series([seconds], [0]))
    timing = Timing(
        case=reference.cases[0].name, device="cpu", threads=1, candidate=one, baselines=(),
        floor=None, ratios=(),
    )  # fmt: skip
    update = {
        "id": f"{number:04d}", "problem": reference, "candidate": candidate.load(path),
        "environment": made, "timing": timing,
    }  # fmt: skip
    return record("pass", True).model_copy(update=update | changes)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'r.sqlite'}"


def test_files_are_found_and_named(tmp_path: Path) -> None:
    copy = tmp_path / HONEST.name
    shutil.copy(HONEST, copy)
    names = [one.name for one in found([str(HONEST), str(WRONG), str(copy)])]
    assert names == [f"vs {HONEST.stem}", f"vs {WRONG.stem}", f"vs {HONEST.stem} #2"]


def test_gpu_code_does_not_race_on_a_cpu() -> None:
    with pytest.raises(UsageError, match="triton code, and this run is on the CPU"):
        found([str(FOLDER / "gpu" / "rms_norm__triton.py")])
    assert found([str(FOLDER / "gpu" / "rms_norm__triton.py")], device="cuda")


def test_the_best_is_the_quickest_of_this_problem_case_and_machine(
    tmp_path: Path, url: str
) -> None:
    paths = [tmp_path / f"{name}.py" for name in ("slow", "quick", "elsewhere", "other_case")]
    for path in paths:
        shutil.copy(HONEST, path)
    slow, quick, elsewhere, other = (kept(path, 2e-3 - n * 4e-4, n) for n, path in enumerate(paths))
    machine = elsewhere.environment.model_copy(update={"cpu": "another"})
    store = Store(url)
    store.add(slow)
    store.add(quick)
    store.add(elsewhere.model_copy(update={"environment": machine}))
    store.add(other.model_copy(update={"timing": other.timing.model_copy(update={"case": "x"})}))
    (one,) = found(["best"], url)
    assert one.name == "best record: quick" and Path(one.candidate.path) == paths[1]


def test_a_best_that_has_changed_or_gone_is_an_error(tmp_path: Path, url: str) -> None:
    with pytest.raises(UsageError, match=r"no timed record of rms_norm.*kernelproof bench"):
        found(["best"], url)
    path = tmp_path / "quick.py"
    shutil.copy(HONEST, path)
    Store(url).add(kept(path, 1e-3, 1))
    path.write_text(path.read_text() + "# changed\n")
    with pytest.raises(UsageError, match=r"0001 is the best, but .*quick.py has changed"):
        found(["best"], url)
    path.unlink()
    with pytest.raises(UsageError, match="its candidate is not at"):
        found(["best"], url)


def test_a_mismatch_is_a_note() -> None:
    rival = SimpleNamespace(picks=SimpleNamespace(held=["output"]), untimed=None)

    def judge(held, untimed):
        assert held == ["output"]
        return SimpleNamespace(status=status, check=SimpleNamespace(message="off by 3"))

    status = "pass"
    assert rivals.mismatch("vs x", rival, judge) == ""
    status = "wrong"
    assert (
        rivals.mismatch("vs x", rival, judge) == "vs x does not compute the same function: off by 3"
    )


def test_a_wrong_rival_is_timed_and_named() -> None:
    options = pipeline.Options(
        level="quick", seeds=1, baselines=("eager",), rounds=3, vs=(str(WRONG), str(HONEST))
    )
    made = pipeline.judge("rms_norm", HONEST, timed=True, options=options)
    assert made.timing is not None, made.verdict.message
    assert [b.name for b in made.timing.baselines] == [
        "eager", f"vs {WRONG.stem}", f"vs {HONEST.stem}",
    ]  # fmt: skip
    assert all(b.host and b.warm and b.first_call for b in made.timing.baselines)
    assert all(b.build and b.construction is not None for b in made.timing.baselines)
    (note,) = [n for n in made.timing.notes if "does not compute the same" in n]
    assert note.startswith(f"vs {WRONG.stem} ")
    assert made.timing.candidate.build and made.timing.conditions is not None


def test_rivals_that_are_made_ready_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ImportError('no such library')\n")
    reference = problem.load("rms_norm")
    case = reference.problem.cases[0]
    others = [rivals.Rival(path.stem, candidate.load(path)) for path in (HONEST, broken)]
    race = contestants.Race(reference, case, "cpu", 1, [], others, pipeline.Options())
    with (
        Ahead("cpu", many=False) as ahead,
        contestants.Field(race, payload_of(reference, case, 1), 5, ahead) as field,
    ):
        # As a GPU with many processors has it.
        field._pool = ThreadPoolExecutor(2)
        honest, bad = (one.subject for one in field.entrants())
        facts = honest.prepare()
        assert facts["first"] > 0 and facts["build"] > 0 and facts["problem"] == ""
        with pytest.raises(CandidateError, match="no such library"):
            bad.prepare()
    assert not any(one.worker.alive for one in field.rivals.values())
