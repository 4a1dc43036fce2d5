"""The judge that stays up for a session: as commands meet it, and as a candidate would abuse it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelproof import holder, session
from kernelproof.resident import client, place
from kernelproof.resident.client import Ask
from kernelproof.resident.imported import Imported
from kernelproof.resident.launch import Launch
from kernelproof.resident.place import Line

PROBLEM = Path(__file__).resolve().parents[2] / "problems" / "axpby.py"
BODY = """import os, socket, time
import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x, z, alpha, beta, valid):
        {}
        y = x.clone()
        y[:, :valid] = (alpha * x[:, :valid].float() + beta * z[:, :valid].float()).to(x.dtype)
        return y
"""
RULES = ("--level", "quick", "--submit-level", "quick", "--seeds", "1", "--baseline", "eager",
         "--seconds", "0.2", "--rounds", "3", "--budget", "20")  # fmt: skip
# Runs a command as `python -m kernelproof` does, and tells what it imported.
TELLS = """
import atexit, sys
from kernelproof.__main__ import run
slow = ("torch", "pydantic", "sqlalchemy", "typer")
atexit.register(lambda: print([n for n in slow if n in sys.modules], file=sys.stderr))
run()
"""


class Shop:
    """A data folder, a problem, candidates, and commands that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problem = folder / "axpby.py"
        self.problem.write_text(PROBLEM.read_text())
        self.env = {k: v for k, v in os.environ.items() if k != place.SWITCH}
        self.env["KERNELPROOF_HOME"] = str(folder / "home")
        self.started: list[subprocess.Popen[str]] = []

    def candidate(self, name: str, line: str = "pass") -> str:
        path = self.folder / f"{name}.py"
        path.write_text(BODY.format(line.replace("\n", "\n        ")))
        return str(path)

    def begin(self, *words: str, **env: str) -> subprocess.Popen[str]:
        found = subprocess.Popen(
            [sys.executable, "-c", TELLS, "session", *words], cwd=self.folder, text=True,
            env={**self.env, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(found)
        return found

    def run(self, *words: str, **env: str) -> tuple[int, str, str]:
        process = self.begin(*words, **env)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def start(self, *words: str) -> str:
        code, out, err = self.run("start", str(self.problem), *RULES, *words, "--json")
        assert code == 0, err
        return str(json.loads(out)["session"]["id"])

    def at(self, one: str) -> Path:
        return self.folder / "home" / "sessions" / one

    def judge(self, one: str) -> int:
        """The process of the judge of session ``one``."""
        card = place.card(self.at(one))
        assert card is not None
        return int(card["pid"])

    def log(self, one: str):
        return session.log(one, store=f"sqlite:///{self.folder / 'home' / 'records.sqlite'}")


def until(true, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return not holder.gone(f"{holder.mine().rsplit('|', 2)[0]}|{pid}|{holder._started(pid)}") and (
        holder._started(pid) != ""
    )


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
    for path in made.folder.glob(f"home/sessions/*/{place.CARD}"):
        pid = int((place.card(path.parent) or {}).get("pid", 0))
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_commands_ask_it_and_import_nothing_slow(shop: Shop) -> None:
    one, right = shop.start(), shop.candidate("right")
    pid = shop.judge(one)
    code, out, err = shop.run("check", one[:6], "right.py", "--short")
    assert code == 0 and "check 1: pass: right (first attempt)" in out
    assert err.splitlines()[-1] == "[]" and "check default ..." in err
    for name in (place.SOCKET, place.CARD, place.LOG):
        assert (shop.at(one) / name).stat().st_mode & 0o777 == 0o600, name
    wrong = shop.candidate("wrong", "beta = 0.0")
    code, out, err = shop.run("check", one, wrong, "--json")
    assert code == 1 and json.loads(out)["status"] == "wrong" and err.endswith("[]\n")
    code, out, err = shop.run("check", one, "none.py")
    assert code == 2 and out == "" and "kernelproof: no candidate 'none.py'" in err
    assert shop.judge(one) == pid and shop.log(one).session.used == 2
    # Another session has its own; what it submits ends that one alone. It is kept in a folder.
    two = shop.start("--dir", "attempts")
    other = shop.judge(two)
    assert other != pid
    code, out, err = shop.run("submit", "attempts", right, "--short")
    assert code == 0 and "closed" in out and err.endswith("[]\n")
    until(lambda: not alive(other))
    assert not (shop.at(two) / place.CARD).exists() and alive(pid)
    code, _, err = shop.run("check", "attempts", right)
    assert code == 2 and "is closed: its candidate was submitted" in err
    assert "judge" not in err.splitlines()[-2]
    _, out, _ = shop.run("stop", one)
    assert out == "its judge has ended; the session's commands judge by themselves\n"
    until(lambda: not alive(pid))
    code, _, err = shop.run("check", one, "none.py")
    assert code == 2 and "judge" not in err and "sqlalchemy" in err.splitlines()[-1]


def test_what_does_not_fit_is_replaced_and_told(shop: Shop) -> None:
    one, right = shop.start("--judge-idle", "60"), shop.candidate("right")
    first = shop.judge(one)
    reads = shop.candidate("reads", "assert os.environ['TILE'] == '64'")
    code, _, err = shop.run("check", one, reads, TILE="64")
    assert code == 0 and "(it was started with another $TILE); starting another" in err
    second = shop.judge(one)
    assert second != first
    shop.problem.write_text(PROBLEM.read_text() + "\n# edited\n")
    code, _, err = shop.run("check", one, right, TILE="64")
    assert code == 0 and f"({shop.problem}, which it has imported, changed)" in err
    assert [a.status for a in shop.log(one).attempts] == ["pass"] * 2
    until(lambda: not alive(first) and not alive(second))
    code, _, err = shop.run("check", one, "none.py", "--no-judge")
    assert code == 2 and "judge" not in err and alive(shop.judge(one))


def test_a_killed_judge_or_command_loses_one_call(shop: Shop) -> None:
    one = shop.start()
    slow = shop.candidate("slow", "time.sleep(50)")
    process = shop.begin("check", one, slow)
    until(lambda: len(shop.log(one).attempts) == 1)
    code, _, err = shop.run("check", one, "none.py")
    assert code == 2 and "is busy with another call; this command judges by itself" in err
    os.kill(shop.judge(one), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3 and "was killed during this call, which is lost" in err
    process = shop.begin("check", one, slow)
    assert process.stderr is not None
    assert "(it was killed, or did not start); starting another" in process.stderr.readline()
    until(lambda: len(shop.log(one).attempts) == 2)
    judge = shop.judge(one)
    process.kill()
    until(lambda: not alive(judge))
    log = shop.log(one)
    assert [a.state for a in log.attempts] == ["lost", "lost"]
    assert (log.session.used, log.session.state) == (2, "open")
    card = place.card(shop.at(one))
    assert card is not None and card["ended"] == "the last call was interrupted"
    shop.run("check", one, shop.candidate("right"))
    assert shop.log(one).attempts[2].status == "pass"


INTRUDES = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        door, answer = socket.socket(socket.AF_UNIX), b""
        door.connect({path!r})
        try:
            door.sendall({request!r})
            answer = door.recv(4096)
        except ConnectionError:
            pass
        with open(os.environ["TMPDIR"] + "/answer", "wb") as file:
            file.write(b"got " + answer)
    os._exit(0)
time.sleep(0.5)
with open(os.environ["TMPDIR"] + "/answer", "rb") as file:
    assert file.read() == b"got ", "it was let in"
"""


@pytest.fixture
def short() -> Iterator[Path]:
    """An address of a socket has 107 bytes at most, and folders of tests have long names."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "session"


def test_a_candidate_that_asks_the_judge_is_turned_away_and_named(shop: Shop, short: Path) -> None:
    one, right = shop.start(), shop.candidate("right")
    card = place.card(shop.at(one))
    assert card is not None
    # With what no candidate can read, too: its process alone gives it away.
    identity = {**place.identity(), "current folder": str(shop.folder)}
    ask = Ask("submit", one, right).__dict__
    request = {"do": "call", "token": card["token"], "identity": identity, **ask}
    short.symlink_to(shop.at(one))
    message = json.dumps(request).encode() + b"\n"
    line = INTRUDES.format(path=str(short / place.SOCKET), request=message)
    code, out, _ = shop.run("check", one, shop.candidate("asks", line), "--json")
    found = json.loads(out)
    assert (code, found["status"]) == (1, "cheat"), found["message"]
    assert "connects to the socket of the judge" in found["message"]
    log = shop.log(one)
    assert (log.session.used, log.session.state, len(log.attempts)) == (1, "open", 1)
    # What it saw is told of that candidate and of no later one.
    assert shop.run("check", one, right)[0] == 0
    reads = shop.candidate("reads", f"open({str(shop.at(one) / place.CARD)!r})")
    code, out, _ = shop.run("check", one, reads, "--json")
    if "files: Landlock" in json.dumps(json.loads(out)["record"]["build"]["confinement"]):
        assert code == 1 and "PermissionError" in json.loads(out)["message"]
    # Without the token nobody is heard.
    with socket.socket(socket.AF_UNIX) as door, place.address(shop.at(one)) as name:
        door.connect(name)
        Line(door).send({**request, "token": "0" * 64})
        assert Line(door).receive() == {"why": "it does not know this command's token"}
    assert shop.log(one).session.state == "open"


def test_it_ends_without_calls_and_without_its_folder(shop: Shop) -> None:
    one, two = shop.start("--judge-idle", "1"), shop.start()
    idle, homeless = shop.judge(one), shop.judge(two)
    (shop.at(two)).rename(shop.folder / "elsewhere")
    until(lambda: not alive(idle) and not alive(homeless))
    card = place.card(shop.at(one))
    assert card is not None and card["ended"] == "it had no call for 1 s"
    three = shop.start("--no-judge")
    assert not shop.at(three).exists()


def test_a_folder_that_goes_while_the_judge_starts_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELPROOF_HOME", str(tmp_path))
    launch = Launch()
    os.kill(launch._process.pid, signal.SIGSTOP)  # so that it is told before it reads
    assert launch.tell({"session": "ab", "problem": "x.py", "device": "cpu", "idle": 900}) == ""
    place.folder_of("ab").rename(tmp_path / "elsewhere")
    os.kill(launch._process.pid, signal.SIGCONT)
    assert launch._process.wait(timeout=60) == 0


def test_the_command_line_of_a_call_is_read_as_the_whole_one_is() -> None:
    given = ["session", "check", "ab", "x.py"]
    assert client.parsed(given) == Ask("check", "ab", "x.py")
    many = ["session", "bench", "--short", "ab", "--store=u", "x.py", "--json", "--no-judge"]
    assert client.parsed(many) == Ask("bench", "ab", "x.py", True, True, "u", False)
    assert client.parsed([*given, "--store", "u"]) == Ask("check", "ab", "x.py", store="u")
    for other in (
        given[:3], [*given, "more"], [*given, "--seeds", "1"], [*given, "--store"],
        ["session", "log", "ab", "x"], ["check", "session", "ab", "x.py"], [*given, "--", "y"],
    ):  # fmt: skip
        assert client.parsed(other) is None, other


def test_a_socket_far_down_has_a_short_name(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 90) / ("e" * 90)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as door:
        with place.address(deep) as name:
            listening.bind(name)
            listening.listen()
            door.connect(name)
        assert (deep / place.SOCKET).is_socket()
        assert place.peer(door) == (os.getpid(), os.geteuid())


def test_a_file_that_is_not_what_was_imported_is_named(tmp_path: Path, monkeypatch) -> None:
    helper, late = (tmp_path / f"kp_{name}.py" for name in ("helper", "late"))
    helper.write_text("A = 1\n")
    os.utime(helper, (1, 1))
    monkeypatch.syspath_prepend(str(tmp_path))
    files = Imported()
    importlib.import_module("kp_helper")
    files.note()
    assert str(helper) not in files.changed()
    os.utime(helper, (2, 2))
    assert str(helper) in files.changed()
    time.sleep(0.02)
    # Written, imported, written again: nobody knows any more what was read.
    late.write_text("B = 1\n")
    importlib.import_module("kp_late")
    files.note()
    assert str(late) in files.changed()
    for name in ("kp_helper", "kp_late"):
        del sys.modules[name]


def test_what_differs_is_named() -> None:
    mine = place.identity()
    assert place.differences(mine, json.loads(json.dumps(mine))) == []
    changed = {**mine, "current folder": "/", "environment": {**mine["environment"], "NEW": "1"}}
    assert place.differences(mine, changed) == ["current folder", "$NEW"]
    assert "PWD" not in mine["environment"] and "PATH" in mine["environment"]
