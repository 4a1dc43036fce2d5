"""How long from `session start` to the first verdict, and to the verdict on an unchanged candidate?

    python benchmarks/session_times.py -o FILE [--device cuda] [--rounds 3]

Two ways of working: each call a process of its own (the command line), and all calls in one process
that stays (the MCP server and the Python interface). Every round has an empty data folder, so that
the first verdict includes compiling the candidate; what a machine is asked once is asked before the
first round. At the command line the first verdict counts from the start of the process that opens
the session; in a process that runs already from the call that does, and "ready" is what starting
that process and importing torch took before. Later verdicts count from their calls. Results of
another device that FILE holds stay in it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "candidates"
# Device -> how the candidate is built, its problem, its sources.
CANDIDATES = {
    "cpu": ("C++ through the stable ABI", "cumsum", FIXTURES / "right" / "cumsum__stable_abi"),
    "cuda": (
        "CUDA through NVRTC", "rms_norm", FIXTURES / "gpu" / "rms_norm__cuda_warp_shuffle.py"
    ),
}  # fmt: skip
TIMEOUT = 120.0
_ONE_PROCESS = """
import json, sys, time
began = float(sys.argv[1])
from kernelproof.worker.client import start_server
start_server()
import torch
from kernelproof import session
problem, candidate = sys.argv[2:]
print(json.dumps(time.time() - began), flush=True)
found = session.start(problem)
for _ in range(3):
    answer = session.check(found.session.id, candidate)
    now = time.time()
    assert answer.status == "pass", answer.message
    print(json.dumps(now - began), flush=True)
    began = time.time()
"""


def commands(problem: str, candidate: Path, folder: Path) -> Iterator[float]:
    """Seconds before the session, 0, of the first and of the next two verdicts, each call a
    process."""
    yield 0.0
    began = time.time()
    one = json.loads(_run(["start", problem, "--json"], folder))["session"]["id"]
    for number in range(3):
        began = began if number == 0 else time.time()
        found = json.loads(_run(["check", one, str(candidate), "--json"], folder, number))
        assert found["status"] == "pass", found["message"]
        yield time.time() - began


def one_process(problem: str, candidate: Path, folder: Path) -> list[float]:
    """The same in one process."""
    words = [sys.executable, "-c", _ONE_PROCESS, str(time.time()), problem, str(candidate)]
    ready, first, *again = (json.loads(line) for line in _out(words, folder).splitlines())
    return [ready, first - ready, *again]


WAYS = {"commands": commands, "one process": one_process}


def _run(words: list[str], folder: Path, number: int = -1) -> str:
    return _out([sys.executable, "-m", "kernelproof", "session", *words], folder, number)


def _out(words: list[str], folder: Path, number: int = -1) -> str:
    environment = {**os.environ, "KERNELPROOF_HOME": str(folder)}
    if number >= 0:
        environment["KERNELPROOF_TIMELINE"] = str(folder / f"timeline-{number}.json")
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-3000:]}{done.stdout[-1000:]}")
    return done.stdout


def measured(device: str, rounds: int) -> Iterator[dict[str, Any]]:
    """Rows as they come: seconds of each verdict, ways in turn."""
    _, problem, candidate = CANDIDATES[device]
    for number in range(rounds):
        for way, go in WAYS.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                ready, first, *again = go(problem, candidate, folder)
                stages = {
                    p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("timeline-*"))
                }
            yield {
                "device": device, "way": way, "round": number, "ready": ready, "first": first,
                "again": again, "stages": stages,
            }  # fmt: skip


def summary(rows: list[dict[str, Any]], way: str) -> dict[str, float]:
    mine = [row for row in rows if row["way"] == way]
    first = [row["first"] for row in mine]
    again = [seconds for row in mine for seconds in row["again"]]
    return {
        "ready": statistics.median(row["ready"] for row in mine),
        "first": statistics.median(first), "first, least": min(first),
        "again": statistics.median(again), "again, least": min(again), "rounds": len(mine),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", choices=CANDIDATES, default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="Such as that the machine was busy.")
    given = parser.parse_args()
    # Imports are in the file cache, and torch has its bytecode, before anything counts.
    subprocess.run([sys.executable, "-m", "kernelproof", "doctor"], capture_output=True, check=True)
    body = json.loads(given.output.read_text()) if given.output.is_file() else {}
    how, problem, candidate = CANDIDATES[given.device]
    rows: list[dict[str, Any]] = []
    for row in measured(given.device, given.rounds):
        rows.append(row)
        print(f"{row['way']:12} first {row['first']:.2f} s, again", end=" ")
        print(", ".join(f"{seconds:.2f} s" for seconds in row["again"]), flush=True)
        from kernelproof import environment

        body[given.device] = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "environment": json.loads(environment.capture().model_dump_json()),
            "problem": problem, "candidate": candidate.name, "how": how, "note": given.note,
            "ways": {way: summary(rows, way) for way in dict.fromkeys(r["way"] for r in rows)},
            "rows": rows,
        }  # fmt: skip
        given.output.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
