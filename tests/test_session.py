"""Sessions: calls that cost, a ladder that tells, crashes that lose one call and nothing else."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kernelproof import cli, session, session_calls
from kernelproof.errors import CandidateNotFound, UsageError
from kernelproof.store import Sessions, Store
from kernelproof.types import NextStep, Rules

FOLDER = Path(__file__).parent / "candidates"
HONEST = FOLDER / "right" / "axpby__select.py"
RULES = Rules(
    level="quick", submit_level="quick", seeds=1, baselines=("eager",), timing_seconds=0.2,
    rounds=3, call_timeout=3.0, budget=9,
)  # fmt: skip
BODY = """import torch, time, os
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        {}
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
"""
RIGHT = BODY.format("pass")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 's.sqlite'}"


@pytest.fixture
def opened(url: str) -> Callable[..., str]:
    """Open a session on axpby; its id."""

    def make(**rules: object) -> str:
        wanted = RULES.model_copy(update=rules)
        return session.start("axpby", wanted, store=url).session.id

    return make


def test_a_session_from_a_syntax_error_to_a_submission(opened, url: str) -> None:
    one = opened(costs={"bench": 2})
    found = session.compile(one, RIGHT.replace("pass", "pass pass"), store=url)
    assert found.status == "compile_error" and found.changed == "first attempt"
    (place,) = found.diagnostics
    assert (place.file, place.line) == ("candidate.py", 7) and place.context[2].startswith("> ")
    assert found.next.action == "edit" and found.next.then == "compile"
    assert found.next.why.startswith("mend candidate.py:7: ")
    found = session.compile(one, RIGHT, store=url)
    assert found.status == "pass" and found.changed == "candidate.py +1 -1"
    assert found.next.action == "check" and found.session.left == 7
    found = session.check(one, RIGHT.replace("beta * z", "beta * x"), store=url)
    assert found.status == "wrong" and found.record is not None
    found = session.check(one, RIGHT, store=url)
    assert found.status == "pass" and found.next.action == "bench"
    found = session.bench(one, RIGHT, store=url)
    assert found.summary.time is not None and found.summary.eager is not None
    assert found.session.left == 3
    assert Store(url).get(found.record_id).timing is not None
    found = session.submit(one, HONEST, store=url)
    assert found.session.state == "closed" and found.next.action == "start"
    assert found.record is not None and found.record.timing is not None
    for what in (session.check, session.submit):
        with pytest.raises(UsageError, match=r"is closed: its candidate was submitted"):
            what(one, RIGHT, store=url)
    log = session.log(one, store=url)
    assert [(a.number, a.what, a.status) for a in log.attempts] == [
        (1, "compile", "compile_error"), (2, "compile", "pass"), (3, "check", "wrong"),
        (4, "check", "pass"), (5, "bench", "pass"), (6, "submit", "pass"),
    ]  # fmt: skip
    assert "-        pass pass\n+        pass" in log.attempts[1].diff
    assert log.best in (5, 6) and sum(a.best for a in log.attempts) == 1
    assert log.session.used == 6 and sum(a.cost for a in log.attempts) == 6
    assert session.source_of(one, 3, store=url).files["candidate.py"].count("beta * x") == 1


def test_seeds_of_a_submission_are_fresh(opened, url: str) -> None:
    seeds = set()
    for _ in range(2):
        found = session.submit(opened(), RIGHT, store=url)
        assert found.record is not None and found.record.verdict.status == "pass"
        seeds.add(found.record.seeds)
    assert len(seeds) == 2


def test_a_crash_and_a_hang_are_answers(opened, url: str) -> None:
    one = opened(call_timeout=1.0)
    found = session.check(one, BODY.format("os.abort()"), store=url)
    assert found.status == "crash" and found.next.action == "edit"
    found = session.check(one, BODY.format("time.sleep(60)"), store=url)
    assert found.status == "timeout" and found.session.left == 7
    assert session.check(one, RIGHT, store=url).status == "pass"


def test_an_exhausted_session_submits_its_best(opened, url: str) -> None:
    one = opened(budget=1)
    found = session.check(one, RIGHT, store=url)
    assert found.session.left == 0
    assert found.next.action == "submit" and "0 calls left: submit attempt 1" in found.next.why
    with pytest.raises(UsageError, match="has 0 of its 1 calls left, and check costs 1; submit"):
        session.check(one, RIGHT, store=url)
    assert session.log(one, store=url).session.calls == 1
    assert session.submit(one, RIGHT, store=url).status == "pass"


def test_after_its_time_only_what_was_tried_is_submitted(opened, url: str) -> None:
    one = opened(seconds=0.0)
    with pytest.raises(UsageError, match="has no time left of its 0 s"):
        session.check(one, RIGHT, store=url)
    with pytest.raises(UsageError, match="this candidate was not tried in it"):
        session.submit(one, RIGHT, store=url)
    two = opened(seconds=30.0)
    found = session.check(two, RIGHT, store=url)
    assert 0 < (found.session.seconds_left or 0) < 30


def test_what_has_no_kernel_to_inspect_is_not_at_fault(opened, url: str) -> None:
    one = opened()
    assert session.check(one, HONEST, store=url).status == "pass"
    found = session.inspect(one, HONEST, store=url)
    assert found.status == "unsupported" and found.next.action == "bench"
    log = session.log(one, store=url)
    assert (log.next.action, log.next.why) == ("bench", "it passes")


def test_what_is_no_call_costs_nothing(opened, url: str) -> None:
    one = opened()
    with pytest.raises(CandidateNotFound):
        session.check(one, "no_such.py", store=url)
    with pytest.raises(UsageError, match="no session begins with 'zz'"):
        session.check("zz", RIGHT, store=url)
    with pytest.raises(UsageError, match="leads out of"):
        session.check(one, RIGHT, files={"../x.h": "\n"}, store=url)
    with pytest.raises(UsageError, match="is not a Python name"):
        session.check(one, RIGHT, name="../x", store=url)
    with pytest.raises(UsageError, match="files go with a candidate that is given as text"):
        session.check(one, HONEST, files={"x.h": "\n"}, store=url)
    assert session.log(one, store=url).session.used == 0
    for rules, words in (
        (RULES.model_copy(update={"cases": ("none",)}), "has no case"),
        (RULES.model_copy(update={"costs": {"submit": 1}}), "no call 'submit' to give a cost"),
        (RULES.model_copy(update={"budget": -1}), "budget -1: budgets and costs go from 0"),
        (RULES.model_copy(update={"budget": 10**30}), "go from 0 to 1,000,000,000"),
        (RULES.model_copy(update={"costs": {"check": -1}}), "check -1"),
        (RULES.model_copy(update={"seconds": math.nan}), "a time of nan s: it goes from 0"),
        (RULES.model_copy(update={"seconds": math.inf}), "a time of inf s"),
    ):
        with pytest.raises(UsageError, match=words):
            session.start("axpby", rules, store=url)


def test_a_session_without_calls_takes_a_submission_only(url: str) -> None:
    made = session.start("axpby", RULES.model_copy(update={"budget": 0}), store=url)
    assert made.next.action == "submit"


def test_another_session_begins_with_the_path_of_a_problem_that_is_ones_own(
    tmp_path: Path, url: str
) -> None:
    from kernelproof.session_commands import command

    own = tmp_path / "own_axpby.py"
    own.write_text((FOLDER.parents[1] / "problems" / "axpby.py").read_text())
    start = NextStep(action="start", why="")
    for problem, named in ((str(own), str(own)), ("axpby", "axpby")):
        state = session.start(problem, RULES, store=url).session
        assert command()(start, state) == f"kernelproof session start {named}"


def test_a_fault_of_ours_gives_the_call_back(opened, url: str, monkeypatch) -> None:
    one = opened()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(session_calls, "make", broken)
    for what in (session.check, session.submit):
        with pytest.raises(ZeroDivisionError):
            what(one, RIGHT, store=url)
    log = session.log(one, store=url)
    assert [a.state for a in log.attempts] == ["refused", "refused"]
    assert log.session.used == 0 and log.session.state == "open"
    assert log.attempts[0].message == "ZeroDivisionError: ours"


def test_a_candidate_that_is_edited_meanwhile_is_not_judged(
    opened, url: str, tmp_path: Path, monkeypatch
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(RIGHT)
    make = session_calls.make

    def edits(*arguments: object) -> object:
        path.write_text(RIGHT + "# edited\n")
        return make(*arguments)

    monkeypatch.setattr(session_calls, "make", edits)
    with pytest.raises(UsageError, match="changed while it was looked at"):
        session.check(opened(), path, store=url)


def test_a_kernel_for_a_gpu_where_there_is_none(url: str) -> None:
    kernel = FOLDER / "gpu" / "rms_norm__cuda_warp_shuffle.py"
    rules = RULES.model_copy(update={"cases": ("one_column",)})
    one = session.start("rms_norm", rules, store=url).session.id
    found = session.bench(one, kernel, store=url)
    assert (found.status, found.summary.evidence, found.summary.time) == ("pass", "emulated", None)
    assert any(note.startswith("no times: the kernels were emulated") for note in found.notes)
    found = session.inspect(one, kernel, store=url)
    assert found.status == "pass" and found.kernels[0].registers > 0
    assert found.inspection is not None and found.next.action in ("edit", "check")
    first, second = session.log(one, store=url).attempts
    # What one call learned of the resources is said of every attempt with these sources.
    assert first.summary.registers == second.summary.registers == found.summary.registers


def test_sources_beside_a_text(opened, url: str) -> None:
    folder = FOLDER / "right" / "axpby__c_strides"
    files = {p.name: p.read_text() for p in folder.iterdir() if p.suffix in (".cpp", ".c", ".h")}
    text = (folder / "candidate.py").read_text()
    found = session.compile(opened(), text, files=files, name="mine", store=url)
    assert found.status == "pass" and found.candidate == "mine", found.message


@pytest.mark.parametrize("what", ["check", "submit"])
def test_a_killed_call_is_lost_and_the_session_goes_on(opened, url: str, tmp_path, what) -> None:
    one = opened(call_timeout=60.0)
    path = tmp_path / "sleeps.py"
    path.write_text(BODY.format("time.sleep(50)"))
    command = [sys.executable, "-m", "kernelproof", "session", what, one, str(path)]
    process = subprocess.Popen([*command, "--store", url], stderr=subprocess.DEVNULL)
    kept = Sessions(url)
    deadline = time.monotonic() + 60
    while not kept.calls(one) and time.monotonic() < deadline:
        time.sleep(0.05)
    if what == "submit":
        with pytest.raises(UsageError, match="is being closed: a submission is running"):
            session.check(one, RIGHT, store=url)
    assert session.log(one, store=url).attempts[0].state == "running"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    log = session.log(one, store=url)
    assert log.attempts[0].state == "lost" and log.session.state == "open"
    assert log.session.used == (1 if what == "check" else 0)
    assert session.check(one, RIGHT, store=url).status == "pass"
    assert session.submit(one, RIGHT, store=url).session.state == "closed"


def test_the_command_line_plays_it(url: str, capsys: pytest.CaptureFixture) -> None:
    def play(*words: str) -> tuple[int, str, str]:
        try:
            cli.main(["session", *words, "--store", url])
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    code, out, _ = play("start", "axpby", "--budget", "2", "--level", "quick", "--json")
    one = json.loads(out)["session"]["id"]
    code, out, err = play("check", one[:6], str(FOLDER / "wrong" / "axpby__rounded_scalars.py"))
    assert code == 1 and "check 1: wrong: axpby__rounded_scalars" in out and "check default" in err
    assert "1 of 2 calls left\nnext     wrong: " in out
    assert out.rstrip().endswith(f"kernelproof session check {one} CANDIDATE")
    code, out, _ = play("check", one, str(HONEST), "--json")
    assert code == 0 and json.loads(out)["session"]["left"] == 0
    code, out, err = play("check", one, str(HONEST))
    assert code == 2 and "has 0 of its 2 calls left" in err and out == ""
    code, out, _ = play("log", one)
    rows = [line.split() for line in out.splitlines()]
    assert ["2", "check", "pass", "axpby__select.py", "+5", "-6"] in [row[:6] for row in rows]
    assert "+++ attempt 2: axpby__select.py" in out
    assert one in play("list")[1]
    code, _, err = play("start", "axpby", "--cost", "bench")
    assert code == 2 and "--cost 'bench' is not CALL=N" in err
    code, _, err = play("start", "axpby", "--level", "some")
    assert code == 2 and "--level 'some': there are quick, default, thorough" in err


def test_a_folder_is_a_session(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    def play(*words: str) -> tuple[int, str, str]:
        try:
            cli.main(["session", *words])
        except SystemExit as end:
            return int(end.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    code, out, _ = play("start", "axpby", "--dir", "my attempts", "--level", "quick")
    assert code == 0
    assert out.rstrip().endswith("kernelproof session check 'my attempts' CANDIDATE")
    code, out, _ = play("check", "my attempts", str(HONEST), "--short")
    assert code == 0 and "kernelproof session bench 'my attempts' CANDIDATE" in out
    (tmp_path / "my attempts").rename("elsewhere")
    assert session.log("elsewhere").session.used == 1
    assert session.problem_of("elsewhere") == "axpby"
    # It is in its own store and in no other.
    one = session.log("elsewhere").session.id
    with pytest.raises(UsageError, match=f"no session begins with '{one}'"):
        session.log(one)
    code, _, err = play("start", "axpby", "--dir", "elsewhere")
    assert code == 2 and f"elsewhere has the session {one}: go on with it" in err
    code, _, err = play("start", "axpby", "--dir", "other", "--store", "sqlite://")
    assert code == 2 and "has its store there; leave sqlite:// out" in err
    (tmp_path / "elsewhere" / "session.json").write_text("{}")
    with pytest.raises(UsageError, match=r"does not name a session: KeyError"):
        session.log("elsewhere")
