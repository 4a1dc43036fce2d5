"""Prove the shipped operators on a GPU, and run their GPU tests under compute-sanitizer.

    python benchmarks/operators_on_gpu.py -o FOLDER [--gpus 0,1] [--jobs 6] [--seconds 500]
                                          [--only WORD ...] [--commit COMMIT]

So many at a time on each GPU, until the time is over: what runs then is ended. Proofs and logs go
to FOLDER; each outcome is in results/h200/operators-on-gpu.json as it comes, in place of an earlier
one. Tests are run a few at a time, so that a run that is cut off tells how many were clean.
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
# Tests by file, and which of them: a tool slows kernels down a hundredfold.
SANITIZED = {
    "tests/ops/test_mla_kv_cuda.py": "gpu_designs_of_hopper or gpu_values",
    "tests/ops/test_mla_kv_backward.py": "gpu",
    "tests/ops/test_gated_recurrence_chunks.py": "gpu and not 2100",
    "tests/ops/test_gated_recurrence_gradients.py": "gpu",
    "tests/ops/test_gated_recurrence_quick.py": "gpu and not 3000",
    "tests/ops/test_int8_wgmma.py": "gpu",
    "tests/ops/test_int8_forms.py": "test_gpu and not long",
    "tests/ops/test_int8_decode.py": "gpu",
}
SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
SHARE = 8  # tests a process under a tool


class Job(NamedTuple):
    name: str
    part: int
    command: list[str]
    proof: Path | None  # else it is a run under a tool
    tests: int  # that it has
    of: int  # tests of all parts


def jobs(folder: Path, sanitizer: str) -> list[Job]:
    found = []
    for problem, candidate in PROBLEMS.items():
        proof = folder / f"{problem}.json"
        # One quick baseline: what counts here is the verdict.
        command = [sys.executable, "-m", "kernelproof", "prove", problem, candidate, "--device"]
        command += ["cuda", "--thorough", "--baseline", "eager", "--rounds", "3", "--seconds", "1"]
        found.append(Job(f"prove {problem}", 0, [*command, "-o", str(proof)], proof, 0, 0))
    parts = []
    for path, words in SANITIZED.items():
        names = collected(path, words)
        # Neighbours have much the same cost: each share takes of all.
        shares = -(-len(names) // SHARE)
        for tool, part in itertools.product(("racecheck", "memcheck"), range(shares)):
            share = names[part::shares]
            command = [sanitizer, "--tool", tool, "--report-api-errors", "no", sys.executable]
            command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *share]
            name = f"{tool} {Path(path).stem}"
            parts.append(Job(name, part, command, None, len(share), len(names)))
    return found + sorted(parts, key=lambda job: job.part)


def collected(path: str, words: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "--collect-only"]
    command += ["-p", "no:cacheprovider", "-m", "gpu", "-k", words, path]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    if not names:
        raise SystemExit(f"operators_on_gpu: no test of {path}: {listed.stdout}{listed.stderr}")
    return names


def outcome(job: Job, log: str, code: int | None) -> dict[str, Any]:
    """``code``: exit status; None for a job that was ended."""
    if job.proof is not None:
        status = {0: "pass", 1: "not right", None: "cut off"}.get(code, f"exit status {code}")
        return {"status": status}
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    passed, failed = (re.findall(rf"(\d+) {word}", log) for word in ("passed", "failed"))
    row: dict[str, Any] = {
        "tests": job.of, "passed": int(passed[-1]) if passed else 0,
        "failed": int(failed[-1]) if failed else 0, "findings": sum(counts),
    }  # fmt: skip
    clean = code == 0 and row["passed"] == job.tests and counts and row["findings"] == 0
    row["status"] = "cut off" if code is None else "clean" if clean else "not clean"
    return row


def joined(row: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two parts of one job. What is not clean stays so, and so does what was cut off."""
    worst = ("not clean", "cut off", "clean")
    together = {key: row[key] + new[key] for key in ("passed", "failed", "findings", "seconds")}
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
    log = path.read_text(errors="replace") if path.is_file() else ""
    return outcome(job, log, code) | {"seconds": round(time.monotonic() - started, 1)}


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
    for gpu in given.gpus.split(",") * given.jobs:
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

    with concurrent.futures.ThreadPoolExecutor(given.jobs * (given.gpus.count(",") + 1)) as pool:
        list(pool.map(done, chosen))
    return 0 if all(row["status"] in ("pass", "clean") for row in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
