"""Candidates that break or attack their process: each gets its status within its time-out, the
next candidate is judged normally, and nothing is left behind.

A fixture is a file or folder ``axpby__<what>`` in ``tests/candidates/faults`` with ``EXPECT``, and
``SAYS``, words that the message or the detail must have. It is run from a copy.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from test_candidates import FOLDER, constant, fixtures

from kernelproof import subject
from kernelproof.pipeline import Options, judge
from kernelproof.store import Store
from kernelproof.types import Record
from kernelproof.worker import client, landlock, processes

FAULTS = FOLDER / "faults"
NEXT = FOLDER / "right" / "axpby__select.py"
ON_GPU = [FAULTS / "axpby__device_assert.py"]
ON_GPU += [FOLDER / "gpu" / f"axpby__{name}.py" for name in ("hang", "illegal_access")]
# What these try is refused only where the machine has what refuses it.
NEEDS_LANDLOCK = {
    "writes_site_packages": 1, "deletes_its_sources": 1, "reads_the_problem": 1,
    "reads_the_records": 1, "reads_its_parents_memory": 1, "connects": 4, "kills_its_parent": 6,
}  # fmt: skip
PROCESSES = 20
GIGABYTE = 10**9
TIMEOUT = 1.5


def judged(path: Path, timeout: float = 30.0, device: str = "cpu") -> Record:
    options = Options(
        device=device, level="quick", cases=("default",), seed=7, build_timeout=timeout,
        call_timeout=timeout, memory=GIGABYTE,
    )  # fmt: skip
    return judge("axpby", path, options=options)


def copied(path: Path, folder: Path) -> Path:
    copy = folder / path.name
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        shutil.copy(path, copy)
    return copy


@pytest.fixture(autouse=True)
def few_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, processes=PROCESSES)


def limit(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    confine: Callable = subject.confine
    monkeypatch.setattr(
        subject, "confine", lambda *given: dataclasses.replace(confine(*given), **changes)
    )


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server, records to look for, and builds, so that time-outs are those of the faults."""
    Store()
    assert judged(NEXT).status == "pass"
    for path in fixtures("faults"):
        if path.is_dir():
            from kernelproof.build import c_library

            c_library([path / "kernel.cpp"])


def nothing_is_left() -> bool:
    """Whether the server has no descendants: what loses its parent comes to the server."""
    assert client._server is not None
    for _ in range(1000):
        if not processes.descendants(client._server.process.pid):
            return True
        time.sleep(0.02)
    return False


def check(path: Path, record: Record) -> None:
    said = f"{record.verdict.message}\n{record.verdict.detail}\n{record.build.detail}"
    assert record.status == constant(path, "EXPECT"), said
    for words in constant(path, "SAYS") or ():  # type: ignore[attr-defined]
        assert words in said
    assert nothing_is_left()


@pytest.mark.parametrize(
    "path", [p for p in fixtures("faults") if p not in ON_GPU], ids=lambda p: p.stem
)
def test_fault_gets_its_status_and_the_next_candidate_too(path: Path, tmp_path: Path) -> None:
    needed = NEEDS_LANDLOCK.get(path.stem.split("__")[1], 0)
    if landlock.version() < needed:
        pytest.skip(f"Landlock here has version {landlock.version()}, and {needed} is needed")
    timeout = TIMEOUT if constant(path, "EXPECT") == "timeout" else 30.0
    copy = copied(path, tmp_path)
    started = time.monotonic()
    record = judged(copy, timeout)
    took = time.monotonic() - started
    check(path, record)
    assert took < timeout + 5.0
    assert copy.exists()
    assert not (Path(torch.__file__).parents[1] / "kernelproof_fault_probe.py").exists()
    assert judged(NEXT).status == "pass"


@pytest.mark.gpu
@pytest.mark.parametrize("path", ON_GPU, ids=lambda p: p.stem)
def test_fault_on_a_gpu_gets_its_status_and_the_next_candidate_too(path: Path) -> None:
    timeout = 10.0 if constant(path, "EXPECT") == "timeout" else 60.0
    check(path, judged(path, timeout, "cuda"))
    assert judged(NEXT, 60.0, "cuda").status == "pass"
    assert nothing_is_left()


def test_the_output_is_kept_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "talks.py"
    path.write_text(
        "import os, torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, *a):\n"
        "        os.write(1, b'begin' + b'x' * (1 << 22))\n        os.write(2, b'the end')\n"
        "        os._exit(3)\n"
    )
    record = judged(path)
    detail = record.verdict.detail
    assert detail.startswith("begin") and detail.endswith("the end")
    assert "bytes left out" in detail and len(detail) < 300_000


def test_a_killed_supervisor_costs_only_its_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, without=("files", "rights"))
    path = copied(FAULTS / "axpby__kills_its_parent.py", tmp_path)
    # It starts a process first, which would be left.
    text = path.read_text().replace(
        "        os.kill(", "        os.fork() or __import__('time').sleep(60)\n        os.kill(", 1
    )
    path.write_text(text)
    record = judged(path)
    assert record.status == "crash", record.verdict.message
    assert nothing_is_left()
    assert judged(NEXT).status == "pass"


def test_a_killed_server_is_replaced() -> None:
    assert judged(NEXT).status == "pass"
    assert client._server is not None
    client._server.process.kill()
    assert judged(NEXT).status == "pass"


def test_without_landlock_changed_files_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, without=("files",))
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    deletes = copied(FAULTS / "axpby__deletes_its_sources.py", tmp_path)
    record = judged(deletes)
    assert record.status == "cheat" and str(deletes) in record.verdict.message
    assert "files: not protected" in record.build.confinement

    writes = tmp_path / "writes.py"
    text = (FAULTS / "axpby__writes_site_packages.py").read_text()
    writes.write_text(
        text.replace("pathlib.Path(torch.__file__).parents[1]", f"pathlib.Path({str(packages)!r})")
    )
    record = judged(writes)
    assert record.status == "cheat" and "kernelproof_fault_probe.py" in record.verdict.message
    assert judged(NEXT).status == "pass"


def test_the_record_names_the_limits() -> None:
    lines = judged(NEXT).build.confinement
    assert lines[0].startswith(f"resources: 1.0 GB of memory, {PROCESSES} processes")
    assert {line.split(":")[0] for line in lines} >= {"resources", "network", "files"}


def test_a_folder_of_candidates_has_a_status_for_each(run_cli, tmp_path: Path) -> None:
    names = ("os_exit", "raises_in_del", "segfault_in_c")
    for path in fixtures("faults"):
        if path.stem.split("__")[1] in names:
            copied(path, tmp_path)
    shutil.copy(NEXT, tmp_path)
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    command = ["check", "axpby", str(tmp_path), "--quick", "--case", "default"]
    done = run_cli(*command, "--json")
    assert done.returncode == 1, done.stderr
    found = {
        r["candidate"]["name"].split("__")[1]: r["status"]
        for r in json.loads(done.stdout)["records"]
    }
    assert found == {
        "os_exit": "crash", "raises_in_del": "pass", "segfault_in_c": "crash", "select": "pass",
    }  # fmt: skip
    assert "helper.py: left out" in done.stderr
    done = run_cli("check", "axpby", str(tmp_path), "--repro", "x.py")
    assert done.returncode == 2 and "--repro x.py goes with one candidate" in done.stderr
