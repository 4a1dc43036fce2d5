"""A suite on local workers, whose processes and driver are killed in the middle: nothing is lost,
and the table is the one that it must be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import thirty

from kernelproof.errors import UnsupportedError, UsageError
from kernelproof.store import Store, Suites
from kernelproof.suite import runs
from kernelproof.suite.judging import Judge, Late, Lost, Order, by_core, processors_of
from kernelproof.types import SuiteResult
from kernelproof.worker import processes

CLI = [sys.executable, "-m", "kernelproof", "suite"]


def waited(condition: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


def judges(driver: int) -> list[int]:
    """The judging processes of a driver."""
    found = []
    for pid in processes.descendants(driver):
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and b"suite.judging" in command.read_bytes():
            found.append(pid)
    return found


def test_thirty_candidates_with_a_worker_and_the_driver_killed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.sqlite'}"
    options = ["--quick", "--timeout", str(thirty.OPTIONS["call_timeout"]), "--device", "cpu"]
    command = [*CLI, "run", *map(str, thirty.write(tmp_path)), "--no-time", "--jobs", "2"]
    driver = subprocess.Popen(
        [*command, *options, "--store", store], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    kept = Suites(store)

    def results() -> list[SuiteResult]:
        return [r for run, _ in kept.latest(1) for r in kept.results(run.id)]

    draw = random.Random()
    waited(lambda: len(results()) >= draw.randint(2, 6))
    mine = judges(driver.pid)
    os.kill(draw.choice(mine), signal.SIGKILL)
    waited(lambda: len(results()) >= draw.randint(8, 16))
    below = processes.descendants(driver.pid)
    driver.kill()
    driver.wait()
    # What it has started ends with it, also in the middle of an item.
    waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 30.0)

    ((run, count),) = kept.latest(1)
    before = {r.item: r.record_id for r in results()}
    assert 8 <= count == len(before) < 30
    # A candidate that has changed since is judged again.
    name = draw.choice(sorted(before.keys() - {"twice/syntax", "twice/empty"}))
    changed = (tmp_path / "candidates" / name).with_suffix(".py")
    changed.write_text(changed.read_text() + "# the same, said again\n")
    del before[name]
    told: list[str] = []
    state = runs.resume(
        run.id[:8], store=store, means=runs.Means(jobs=2),
        told=lambda result, done, count: told.append(result.item),
    )  # fmt: skip
    assert {r.item: r.status for r in state.results} == thirty.expected()
    now = {r.item: r.record_id for r in state.results}
    assert before.items() <= now.items()
    assert state.left == 0 and set(told) == set(now) - set(before) and len(told) == len(set(told))
    record = Store(store).get(now["twice/right_00"])
    assert record.status == "pass" and record.candidate.name == "right_00"
    # Nothing is left to do.
    assert runs.resume(run.id, store=store).results == state.results
    # Nor where the suite lies elsewhere now: it goes by the content.
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("problems", "candidates"):
        (tmp_path / name).rename(moved / name)
    with pytest.raises(UsageError, match="no suite"):
        runs.resume(run.id, store=store)
    places = moved / "problems", moved / "candidates"
    assert runs.resume(run.id, *places, store=store).results == state.results
    _shown(run.id, store, tmp_path)


def _shown(run: str, store: str, folder: Path) -> None:
    """What the commands say of the run."""

    def said(*words: str) -> str:
        done = subprocess.run([*CLI, *words, "--store", store], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    text = said("show", run[:6], "--html", str(folder / "page.html"))
    counts = "30 items: 12 pass, 11 wrong, 4 crash, 1 cheat, 1 compile_error, 1 timeout; "
    assert counts in " ".join(text.split()) and "twice/crash_02" in text
    assert "twice/wrong_05" in (folder / "page.html").read_text()
    assert json.loads(said("show", run, "--json"))["left"] == 0
    assert "nothing differs\n30 items alike, 30 of them by status only" in said("compare", run, run)
    assert f"{run}  problems  folder  30 of 30  no" in said("list")


def test_a_run_that_cannot_be_says_why(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 's.sqlite'}"
    problems, candidates = thirty.write(tmp_path)
    published = Path(__file__).parent / "formats" / "kernelbench"
    for words, problem in (
        ("no suite", lambda: runs.start(tmp_path / "none", candidates, store=store)),
        ("needs a folder of candidates", lambda: runs.start(problems, store=store)),
        ("no run of a suite begins with 'x'", lambda: runs.resume("x", store=store)),
        (
            "Ray gives workers their GPUs",
            lambda: runs.start(problems, candidates, means=runs.Means(workers="ray", gpus="0")),
        ),
        (
            "goes with --workers ray",
            lambda: runs.start(problems, candidates, means=runs.Means(address="ray://x")),
        ),
        ("none of 5 problems has a candidate:", lambda: runs.start(published, store=store)),
        ("no GPU '7'", lambda: runs.start(problems, candidates, means=runs.Means(gpus="7"))),
        (
            "times are taken one at a time",
            lambda: runs.start(
                problems, candidates, options={"device": "cpu"}, means=runs.Means(jobs=2)
            ),
        ),
    ):
        with pytest.raises(UsageError, match=words):
            problem()
    assert Suites(store).latest(5) == []
    command = [*CLI, "run", "--resume", "ab", "--no-time", "--quick", str(problems)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "leave level, --no-time out" in done.stderr


def test_a_judging_process_that_dies_or_is_late(tmp_path: Path) -> None:
    problems, candidates = thirty.write(tmp_path)
    hang = Order(
        str(problems / "twice.py"), str(candidates / "twice" / "timeout_00.py"),
        {"device": "cpu", "level": "quick"}, False,
    )  # fmt: skip
    judge = Judge()
    with pytest.raises(Late, match=r"no answer within 0\.5 s"):
        judge.ask("judge", hang, timeout=0.5)
    assert not judge.alive
    judge = Judge()
    assert judge.ask("device")["gpu"] == ""
    os.kill(judge.process.pid, signal.SIGTERM)
    with pytest.raises(Lost, match="killed by signal 15"):
        judge.ask("judge", hang)
    judge.close()


def test_a_build_ahead_is_what_the_judge_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    root = Path(__file__).resolve().parents[1] / "candidates" / "right" / "axpby__c_strides"
    order = Order("axpby", str(root), {"device": "cpu", "level": "quick"}, False)
    judge = Judge(nice=5)
    try:
        judge.ask("build", order)
        builds = sorted(p.name for p in tmp_path.glob("candidates/*/builds/*"))
        assert builds
        assert '"pass"' in judge.ask("judge", order)["record"]
        assert sorted(p.name for p in tmp_path.glob("candidates/*/builds/*")) == builds
        # What cannot be built is for the judge to tell.
        broken = Order("axpby", str(thirty.write(tmp_path)[1] / "twice__syntax.py"), {}, False)
        assert judge.ask("build", broken)["seconds"] > 0
    finally:
        judge.close()


def test_cuda_is_built_for_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernelproof import build
    from kernelproof.build import inline, stable

    monkeypatch.setattr(stable, "target", "")
    monkeypatch.setattr(inline, "ahead", False)
    # So that it is taken back after the test.
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "")
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST")
    with pytest.raises(UnsupportedError, match="no CUDA GPU"):
        stable._present_arch(Path("k.cu"))
    build.for_target("9.0")
    assert stable._present_arch(Path("k.cu")) == "sm_90"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "9.0+PTX" and inline.ahead


def test_a_share_has_whole_cores(tmp_path: Path) -> None:
    for number in range(8):  # as Linux numbers four cores of two hardware threads
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    cores = by_core(range(8), tmp_path)
    assert [sorted(processors_of(n, 2, cores)) for n in (0, 1)] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    (tmp_path / "cpu1" / "topology" / "thread_siblings_list").write_text("0-1\n")
    assert by_core([1, 2, 0], tmp_path) == [0, 1, 2]
    assert by_core([3, 1, 2], tmp_path / "untold") == [1, 2, 3]
