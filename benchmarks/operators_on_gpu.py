"""Prove the shipped operators on a GPU, and run their designs under compute-sanitizer.

    python benchmarks/operators_on_gpu.py -o FOLDER [--gpus 0,1] [--jobs 6] [--seconds 500]
                                          [--only WORD ...] [--commit COMMIT]

So many at a time on each GPU, until the time is over: what runs then is ended. Proofs and logs go
to FOLDER; each outcome is in results/h200/operators-on-gpu.json as it comes, in place of an earlier
one. What compute-sanitizer watches are calls of `sanitize_designs.py`, shared out over processes.
`operator_proofs.py` makes rows of the proofs. ``--only``: jobs whose name has one of the words.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "h200" / "operators-on-gpu.json"
PROBLEMS = {
    "int8_attention_forms": "cuda", "gated_recurrence_forms": "cuda", "int8_attention": "cuda",
    "gated_recurrence": "cuda", "mla_kv": "cuda",
    "mla_kv_norm": "tests/candidates/right/mla_kv_norm__shipped_operator.py",
}  # fmt: skip
# Processes that share an operator's designs, under each tool.
PARTS = {"mla_kv": 4, "gated_recurrence": 6, "int8_attention": 4}
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


class Job(NamedTuple):
    name: str
    part: int
    command: list[str]
    proof: Path | None  # else it is a run under a tool


def jobs(folder: Path, sanitizer: str) -> list[Job]:
    found = []
    for problem, candidate in PROBLEMS.items():
        proof = folder / f"{problem}.json"
        # One quick baseline: what counts here is the verdict.
        command = [sys.executable, "-m", "kernelproof", "prove", problem, candidate, "--device"]
        command += ["cuda", "--thorough", "--baseline", "eager", "--rounds", "3", "--seconds", "1"]
        found.append(Job(f"prove {problem}", 0, [*command, "-o", str(proof)], proof))
    program = str(ROOT / "benchmarks" / "sanitize_designs.py")
    # Who watches second finds what was compiled.
    for tool, (operator, parts) in itertools.product(TOOLS, PARTS.items()):
        for part in range(parts):
            command = [sanitizer, "--tool", tool, "--report-api-errors", "no", sys.executable]
            command += [program, operator, "--part", f"{part}/{parts}"]
            found.append(Job(f"{tool} {operator}", part, command, None))
    return found


def outcome(job: Job, log: str, code: int | None) -> dict[str, Any]:
    """``code``: exit status; None for a job that was ended."""
    if job.proof is not None:
        status = {0: "pass", 1: "not right", None: "cut off"}.get(code, f"exit status {code}")
        return {"status": status}
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    row = {"calls": log.count(": ran\n"), "findings": sum(counts)}
    clean = code == 0 and row["calls"] > 0 and bool(counts) and row["findings"] == 0
    status = "cut off" if code is None else "clean" if clean else "not clean"
    return {**row, "status": status}


def joined(row: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two parts of one job. What is not clean stays so, and so does what was cut off."""
    worst = ("not clean", "cut off", "clean")
    together = {key: row[key] + new[key] for key in ("calls", "findings", "seconds")}
    status = min(row["status"], new["status"], key=worst.index)
    return {**row, **together, "status": status}


def run(job: Job, folder: Path, gpu: str, deadline: float) -> dict[str, Any]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
    if job.proof is not None:
        environment["KERNELPROOF_HOME"] = str(folder / f"home-{job.proof.stem}")
    else:
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    path = folder / f"{job.name.replace(' ', '.')}.{job.part}.log"
    started = time.monotonic()
    code: int | None = None
    if started < deadline:
        with path.open("w") as file:
            process = subprocess.Popen(
                job.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(deadline - started)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    seconds = round(time.monotonic() - started, 1)
    log = path.read_text(errors="replace") if path.is_file() else ""
    return {**outcome(job, log, code), "seconds": seconds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--jobs", type=int, default=6, help="at a time on each GPU")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--commit", default="", help="of what is proved where there is no git")
    given = parser.parse_args()
    from kernelproof import environment

    captured = environment.capture()
    if not captured.gpu:
        print("operators_on_gpu: torch sees no CUDA GPU here", file=sys.stderr)
        return 1
    deadline, lock = time.monotonic() + given.seconds, threading.Lock()
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    given.output.mkdir(parents=True, exist_ok=True)
    chosen = [
        job for job in jobs(given.output.resolve(), sanitizer)
        if not given.only or any(word in job.name for word in given.only)
    ]  # fmt: skip
    rows: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    found: dict[str, dict[str, Any]] = {}
    where = {
        "gpu": captured.gpu, "commit": given.commit or captured.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }  # fmt: skip
    free: queue.SimpleQueue[str] = queue.SimpleQueue()
    places = given.gpus.split(",") * given.jobs
    for gpu in places:
        free.put(gpu)

    def done(job: Job) -> None:
        gpu = free.get()
        row = run(job, given.output, gpu, deadline)
        free.put(gpu)
        with lock:
            row = joined(found[job.name], row) if job.name in found else row
            found[job.name] = row
            rows[job.name] = row | where
            RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
            print(job.name, job.part, row, flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(done, chosen))
    return 0 if all(row["status"] in ("pass", "clean") for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
