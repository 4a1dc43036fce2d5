"""What a confined worker may read and write, and how limits are chosen."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
import torch

from kernelproof import candidate
from kernelproof.errors import CandidateCrash
from kernelproof.home import home
from kernelproof.worker import Worker, landlock, limits, processes
from kernelproof.worker.limits import available_memory, confine
from kernelproof.worker.supervisor import _HEAD, _TAIL, _Kept

needs_landlock = pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")

TRIES = """
import os
import tempfile
import threading
from pathlib import Path
import torch
from beside import VALUE

class ModelNew(torch.nn.Module):
    def forward(self, *paths):
        for path in paths:
            what, _, name = path.partition(":")
            if what == "read":
                Path(name).read_bytes()
            elif what == "name":
                # As a driver does that names its threads.
                Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/comm").write_text(name)
            elif what == "list":
                list(Path(name).iterdir())
            else:
                target = Path(name or tempfile.gettempdir(), "probe")
                target.write_text("x")
                target.unlink()
        return torch.tensor(VALUE)
"""


@pytest.fixture
def tried(tmp_path: Path):
    """Runs one confined candidate, a file in a folder with others, on what it shall try."""
    (tmp_path / "beside.py").write_text("VALUE = 5\n")
    (tmp_path / "tries.py").write_text(TRIES)
    (tmp_path / "problem.py").write_text("SECRET = 1\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "notes.txt").write_text("others'")
    found = candidate.load(tmp_path / "tries.py")
    worker = Worker("test", confine(found, [str(tmp_path / "problem.py")], False))
    worker.ask(
        "load", timeout=120, payload=([], {}, 3, {}), path=found.path, kind="candidate",
        attr="ModelNew", device="cpu", language="pytorch", threads=1,
    )  # fmt: skip

    def run(*paths: str) -> torch.Tensor:
        (run,) = worker.ask("call", timeout=60, payload=([*paths], 0), poison=False, repeats=1)
        return run["output"]

    yield run
    worker.close()


def test_it_reads_what_it_needs_and_writes_to_its_own_folders(tried, tmp_path: Path) -> None:
    builds = home() / "candidates" / candidate.load(tmp_path / "tries.py").digest
    allowed = [f"read:{tmp_path}/beside.py", f"read:{torch.__file__}", "read:/etc/passwd"]
    allowed += ["name:worker", "write:", f"write:{builds}", f"list:{tmp_path}", "list:/proc/self"]
    assert int(tried(*allowed)) == 5


@needs_landlock
@pytest.mark.parametrize("what", ["read:problem.py", "read:below/notes.txt", "write:.", "write:/"])
def test_it_does_not_touch_the_rest(tried, tmp_path: Path, what: str) -> None:
    kind, _, name = what.partition(":")
    with pytest.raises(CandidateCrash, match="Permission denied"):
        tried(f"{kind}:{tmp_path / name}")


@needs_landlock
def test_a_folder_below_is_opened_except_what_is_hidden(tmp_path: Path) -> None:
    """In a process of its own, since there is no way back."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/open", "a/b/open", "a/b/hidden"):
        (tmp_path / name).write_text(name)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "b" / "hidden")
    pid = os.fork()
    if pid == 0:
        rules = landlock.Ruleset()
        rules.allow_except(tmp_path / "a", landlock.READ, [tmp_path / "a" / "b" / "hidden"])
        rules.restrict()
        seen = 0
        for bit, name in enumerate(("a/open", "a/b/open", "a/b/hidden", "a/link")):
            try:
                (tmp_path / name).read_text()
                seen |= 1 << bit
            except PermissionError:
                pass
        os._exit(seen)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0b0011


def test_what_is_left_out_is_said(tmp_path: Path) -> None:
    limits = dataclasses.replace(confine(None, (), False), without=("files", "network"))
    with Worker("test", limits) as worker:
        lines = worker.protections()
    assert {"files: not protected", "network: not protected"} <= set(lines)


def test_the_output_has_a_beginning_and_an_end() -> None:
    kept = _Kept()
    kept.add(b"a" * 10)
    assert kept.text() == "a" * 10
    kept.add(b"b" * _HEAD)
    kept.add(b"c" * (2 * _TAIL))
    kept.add(b"end")
    text = kept.text()
    assert text.startswith("a" * 10 + "b") and text.endswith("cend")
    left_out = kept.total - _HEAD - _TAIL
    assert f"... {left_out} bytes left out ..." in text


def test_memory_is_bounded_by_the_machine() -> None:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_memory() <= total
    assert confine(None, (), False, 123).memory == 123
    assert confine(None, (), False).memory <= 0.8 * total


def test_descendants_are_found_and_a_wrong_start_time_is_not_killed() -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)
        os._exit(7)
    below = processes.descendants(os.getpid())
    assert pid in below
    processes.kill(pid, "0")
    assert not processes.ended(pid)
    os.close(write)
    os.close(read)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_the_current_folder_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert limits._not_personal(["/usr/lib/python3", str(Path.home())]) == ["/usr/lib/python3"]
