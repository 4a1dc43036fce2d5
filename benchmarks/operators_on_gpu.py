"""Prove the shipped operators on a GPU, and run their GPU tests under compute-sanitizer.

    python benchmarks/operators_on_gpu.py -o FOLDER [--jobs 6] [--seconds 500] [--only WORD ...]

So many at a time, until the time is over: what runs then is ended. Proofs and logs go to FOLDER;
each outcome is in results/h200/operators-on-gpu.json as it comes, in place of an earlier one.
`operator_proofs.py` makes rows of the proofs. ``--only``: jobs whose name has one of the words.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
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


class Job(NamedTuple):
    name: str
    command: list[str]
    proof: Path | None  # else it is a run under a tool


def jobs(folder: Path, sanitizer: str) -> list[Job]:
    found = []
    for problem, candidate in PROBLEMS.items():
        proof = folder / f"{problem}.json"
        # One quick baseline: what counts here is the verdict.
        command = [sys.executable, "-m", "kernelproof", "prove", problem, candidate, "--device"]
        command += ["cuda", "--thorough", "--baseline", "eager", "--rounds", "3", "--seconds", "1"]
        found.append(Job(f"prove {problem}", [*command, "-o", str(proof)], proof))
    for tool in ("memcheck", "racecheck"):
        for path, words in SANITIZED.items():
            command = [sanitizer, "--tool", tool, "--report-api-errors", "no", sys.executable]
            command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-k", words]
            found.append(Job(f"{tool} {Path(path).stem}", [*command, path], None))
    return found


def outcome(job: Job, log: str, code: int | None) -> dict[str, Any]:
    """``code``: exit status; None for a job that was ended."""
    if job.proof is not None:
        status = {0: "pass", 1: "not right", None: "cut off"}.get(code, f"exit status {code}")
        return {"status": status}
    counts = [int(a or b) for a, b in SUMMARY.findall(log)]
    passed, failed = (re.findall(rf"(\d+) {word}", log) for word in ("passed", "failed"))
    row: dict[str, Any] = {
        "passed": int(passed[-1]) if passed else 0, "failed": int(failed[-1]) if failed else 0,
        "findings": sum(counts) if counts else None,
    }  # fmt: skip
    clean = code == 0 and row["passed"] > 0 and row["findings"] == 0
    row["status"] = "cut off" if code is None else "clean" if clean else "not clean"
    return row


def run(job: Job, folder: Path, deadline: float) -> dict[str, Any]:
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    if job.proof is not None:
        environment = {**os.environ, "KERNELPROOF_HOME": str(folder / f"home-{job.proof.stem}")}
    path, started = folder / f"{job.name.replace(' ', '.')}.log", time.monotonic()
    if started >= deadline:
        return {"status": "not run"}
    with path.open("w") as file:
        process = subprocess.Popen(
            job.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        code: int | None
        try:
            code = process.wait(deadline - started)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
    row = outcome(job, path.read_text(errors="replace"), code)
    return row | {"seconds": round(time.monotonic() - started, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--only", nargs="*", default=[])
    given = parser.parse_args()
    from kernelproof import environment

    captured = environment.capture()
    if not captured.gpu:
        print("operators_on_gpu: torch sees no CUDA GPU here", file=sys.stderr)
        return 1
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    given.output.mkdir(parents=True, exist_ok=True)
    chosen = [
        job for job in jobs(given.output.resolve(), sanitizer)
        if not given.only or any(word in job.name for word in given.only)
    ]  # fmt: skip
    rows: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    deadline, lock = time.monotonic() + given.seconds, threading.Lock()
    where = {
        "gpu": captured.gpu, "commit": captured.commit,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
    }  # fmt: skip

    def done(job: Job) -> bool:
        row = run(job, given.output, deadline)
        with lock:
            if row["status"] not in ("not run", "cut off") or job.name not in rows:
                rows[job.name] = row | where
                RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
            print(job.name, row, flush=True)
        return row["status"] in ("pass", "clean")

    with concurrent.futures.ThreadPoolExecutor(given.jobs) as pool:
        return 0 if all(list(pool.map(done, chosen))) else 1


if __name__ == "__main__":
    sys.exit(main())
