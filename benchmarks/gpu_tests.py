"""Which tests for a GPU pass on this one, by name.

    python benchmarks/gpu_tests.py -o FILE [--jobs 6] [--seconds 300] [PATH ...]

Tests are shared out over so many pytest processes at once, but those of `ALONE`, which time: they
run afterwards, by themselves. A test that has no outcome when the time is over is "not run". Where
FILE is there already, the outcomes join those in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
# What is proved of trust and faults: candidates on a GPU, each with the status that it must get.
PATHS = ("tests/test_gpu.py", "tests/worker/test_faults.py", "tests/test_second_device.py")
ALONE = ("test_timing_on_a_gpu", "test_gpu_candidate_passes_when_it_is_timed")
# Built by nvcc through the headers of torch, which takes a minute or two: first, and spread out.
SLOW = ("inline", "default_stream")
COMMON = ["-m", "gpu", "-p", "no:cacheprovider"]


class Collected:
    """Plugin: node ids."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.names = [item.nodeid for item in session.items]


class Told:
    """Plugin: each outcome, as a line of JSON, once it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        row["seconds"] = round(row["seconds"] + report.duration, 2)
        if report.outcome != "passed":
            row |= {"outcome": report.outcome, "message": str(report.longrepr)[-1500:]}
        if report.when == "teardown":
            with self.path.open("a") as file:
                file.write(json.dumps([report.nodeid, row]) + "\n")


def started(names: Sequence[str], folder: Path, number: int) -> subprocess.Popen[bytes]:
    """A process that runs these tests and tells their outcomes in ``folder``."""
    words = [sys.executable, __file__, "-o", str(folder / f"{number}.jsonl"), "--inside", *names]
    return subprocess.Popen(words, cwd=ROOT, start_new_session=True)


def waited(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> None:
    """Until all have ended, or the time is over: then they are ended."""
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.2)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run(names: Sequence[str], jobs: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Outcomes by node id."""
    alone = [n for n in names if any(word in n for word in ALONE)]
    shared = [n for n in names if n not in alone]
    shared.sort(key=lambda n: not any(word in n for word in SLOW))
    deadline = time.monotonic() + seconds
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        slow = sum(any(word in n for word in SLOW) for n in shared)
        # Processes that have a slow test get no other, where there are processes enough.
        shares = [[n] for n in shared[:slow]] if jobs > slow else []
        rest, left = shared[len(shares) :], jobs - len(shares)
        shares += [rest[i::left] for i in range(left)]
        waited([started(s, folder, i) for i, s in enumerate(shares) if s], deadline)
        if alone:
            waited([started(alone, folder, jobs)], deadline)
        for path in folder.glob("*.jsonl"):
            found |= dict(json.loads(line) for line in path.read_text().splitlines())
    return {name: found.get(name, {"outcome": "not run"}) for name in sorted(names)}


def joined(path: Path, run: dict[str, Any], tests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What ``path`` holds, with the outcomes of another run; each names its run by number. A test
    that had no time to run, or was skipped, keeps an earlier outcome."""
    old = json.loads(path.read_text()) if path.exists() else {"runs": [], "tests": {}}
    number, kept = len(old["runs"]), old["tests"]
    for name, row in tests.items():
        if name not in kept or row["outcome"] not in ("not run", "skipped"):
            kept[name] = row | {"run": number}
    counts = Counter(row["outcome"] for row in kept.values())
    return {"runs": [*old["runs"], run], "counts": counts, "tests": dict(sorted(kept.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--commit", help="of the sources, where they are a copy")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", default=PATHS)
    given = parser.parse_args()
    if given.inside:
        return int(pytest.main([*COMMON, *given.paths], plugins=[Told(given.output)]))
    collected = Collected()
    pytest.main([*COMMON, "--collect-only", "-q", *given.paths], plugins=[collected])
    tests = run(collected.names, given.jobs, given.seconds)
    from kernelproof import environment

    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    made = environment.capture().model_dump()
    this = {"date": date, "environment": {**made, "commit": given.commit or made["commit"]}}
    body = joined(given.output, this, tests)
    counts = body["counts"]
    given.output.write_text(json.dumps(body, indent=1) + "\n")
    print(json.dumps(counts))
    return 0 if set(counts) <= {"passed", "skipped"} else 1


if __name__ == "__main__":
    sys.exit(main())
