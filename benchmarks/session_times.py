"""How long from `session start` to the first verdict, and to the verdict on an unchanged candidate?

    python benchmarks/session_times.py -o FILE [--device cuda] [--rounds 3] [--way WAY]

Three ways of working: commands, which ask the session's judge; commands that judge by themselves
(`--no-judge`); and all calls in one process that stays (the MCP server and the Python interface).
Every round has an empty data folder, so that
the first verdict includes compiling the candidate; what a machine is asked once is asked before the
first round. At the command line the first verdict counts from the start of the process that opens
the session; in a process that has run for some seconds from the call that does, and "ready" is what
starting that process and importing torch took before. Later verdicts count from their calls.
"asking" is a command that the judge refuses at once: what asking it takes. "held" is what the judge
holds between calls: resident bytes of its process and of its server of workers, without mapped
files, and how much more of the GPU's memory is in use than once it has ended. Results of another
device or machine that FILE holds stay in it.
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

import pynvml

from kernelproof.worker import processes

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
time.sleep(3)
began = time.time()
found = session.start(problem)
for _ in range(3):
    answer = session.check(found.session.id, candidate)
    now = time.time()
    assert answer.status == "pass", answer.message
    print(json.dumps(now - began), flush=True)
    began = time.time()
"""


def commands(problem: str, candidate: Path, folder: Path, held: dict[str, Any]) -> Iterator[float]:
    """Seconds before the session, 0, of the first and of the next two verdicts, each call a
    command."""
    yield 0.0
    yield from _commands(problem, candidate, folder, [])
    (card,) = folder.glob("sessions/*/judge.json")
    one, judge = card.parent.name, json.loads(card.read_text())["pid"]
    began = time.time()
    done = _done(_session(["check", one, "none.py"]), folder)
    held["asking"] = time.time() - began
    assert done.returncode == 2, done.stderr
    time.sleep(1.0)
    with_judge = _gpu_bytes()
    held["judge"] = processes.held_bytes(judge)
    held["server"] = sum(map(processes.held_bytes, processes.descendants(judge)))
    _run(["stop", one], folder)
    while Path(f"/proc/{judge}").exists():
        time.sleep(0.05)
    time.sleep(0.5)
    held["gpu"] = with_judge - _gpu_bytes()


def alone(problem: str, candidate: Path, folder: Path, held: dict[str, Any]) -> Iterator[float]:
    """The same with commands that judge by themselves."""
    yield 0.0
    yield from _commands(problem, candidate, folder, ["--no-judge"])


def _commands(problem: str, candidate: Path, folder: Path, how: list[str]) -> Iterator[float]:
    began = time.time()
    one = json.loads(_run(["start", problem, "--json", *how], folder))["session"]["id"]
    for number in range(3):
        began = began if number == 0 else time.time()
        found = json.loads(_run(["check", one, str(candidate), "--json", *how], folder, number))
        assert found["status"] == "pass", found["message"]
        yield time.time() - began


def one_process(
    problem: str, candidate: Path, folder: Path, held: dict[str, Any]
) -> Iterator[float]:
    """The same in one process."""
    words = [sys.executable, "-c", _ONE_PROCESS, str(time.time()), problem, str(candidate)]
    yield from (json.loads(line) for line in _out(words, folder).splitlines())


WAYS = {"commands": commands, "commands, --no-judge": alone, "one process": one_process}


def _gpu_bytes() -> int:
    """GPU memory in use, by all; 0 where there is no GPU."""
    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    except pynvml.NVMLError:
        return 0


def _session(words: list[str]) -> list[str]:
    return [sys.executable, "-m", "kernelproof", "session", *words]


def _run(words: list[str], folder: Path, number: int = -1) -> str:
    return _out(_session(words), folder, number)


def _out(words: list[str], folder: Path, number: int = -1) -> str:
    done = _done(words, folder, number)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stderr[-3000:]}{done.stdout[-1000:]}")
    return done.stdout


def _done(words: list[str], folder: Path, number: int = -1) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELPROOF_HOME": str(folder)}
    if number >= 0:
        environment["KERNELPROOF_TIMELINE"] = str(folder / f"timeline-{number}.json")
    return subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment
    )


def measured(device: str, rounds: int, ways: list[str]) -> Iterator[dict[str, Any]]:
    """Rows as they come: seconds of each verdict, ways in turn."""
    _, problem, candidate = CANDIDATES[device]
    for number in range(rounds):
        for way in ways:
            go = WAYS[way]
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                held: dict[str, Any] = {}
                ready, first, *again = go(problem, candidate, folder, held)
                stages = {
                    p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("timeline-*"))
                }
            yield {
                "device": device, "way": way, "round": number, "ready": ready, "first": first,
                "again": again, "stages": stages, "held": held,
            }  # fmt: skip


def summary(rows: list[dict[str, Any]], way: str) -> dict[str, float]:
    mine = [row for row in rows if row["way"] == way]
    first = [row["first"] for row in mine]
    again = [seconds for row in mine for seconds in row["again"]]
    return {
        "ready": statistics.median(row["ready"] for row in mine),
        "first": statistics.median(first), "first, least": min(first),
        "again": statistics.median(again), "again, least": min(again), "rounds": len(mine),
        **{
            name: statistics.median(row["held"][name] for row in mine)
            for name in mine[0]["held"]
        },
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", choices=CANDIDATES, default="cuda")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, action="append", help="Default: all.")
    parser.add_argument("--note", default="", help="Such as that the machine was busy.")
    given = parser.parse_args()
    # Imports are in the file cache, and torch has its bytecode, before anything counts.
    subprocess.run([sys.executable, "-m", "kernelproof", "doctor"], capture_output=True, check=True)
    body = json.loads(given.output.read_text()) if given.output.is_file() else {}
    how, problem, candidate = CANDIDATES[given.device]
    rows: list[dict[str, Any]] = []
    for row in measured(given.device, given.rounds, given.way or list(WAYS)):
        rows.append(row)
        print(f"{row['way']:20} first {row['first']:.2f} s, again", end=" ")
        print(", ".join(f"{seconds:.2f} s" for seconds in row["again"]), flush=True)
        from kernelproof import environment

        found = environment.capture()
        key = "cuda" if given.device == "cuda" else f"cpu: {found.cpu}, {found.cores} cores"
        body[key] = {
            "device": given.device,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "environment": json.loads(found.model_dump_json()),
            "problem": problem, "candidate": candidate.name, "how": how, "note": given.note,
            "ways": {way: summary(rows, way) for way in dict.fromkeys(r["way"] for r in rows)},
            "rows": rows,
        }  # fmt: skip
        given.output.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
