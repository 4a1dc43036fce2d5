"""How long does `kernelproof bench` take, and where does the time go?

    python benchmarks/bench_time.py -o FILE [--device cuda] [--runs 2] [--problem NAME ...]

Each run is a fresh process of the command, with three baselines; times in seconds. The floors of
the device are measured, and what a machine is asked once is asked, before the first run; builds
and files are in the caches from the second on. "after build" is the whole command without the
import (with what it compiles) and the construction of the candidate. Last comes what importing
torch takes without Python's bytecode, twice.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BASELINES = {
    "mla_kv": ("eager", "torch.compile", "two matmuls"),
    # Compiling their loops takes minutes.
    "int8_attention": ("eager", "CUDA graph of eager", "dequantised_sdpa"),
    "gated_recurrence": ("eager", "unbound loop", "chunked"),
}
TIMEOUT = 120.0


def run(problem: str, device: str, folder: Path) -> dict[str, Any]:
    """One run of the command."""
    timeline = folder / "timeline.json"
    load = os.getloadavg()[0]
    words = [
        sys.executable, "-m", "kernelproof", "bench", problem, device, "--json",
        "--store", f"sqlite:///{folder / 'records.sqlite'}",
    ]  # fmt: skip
    for name in BASELINES[problem]:
        words += ["--baseline", name]
    started = time.perf_counter()
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        env={**os.environ, "KERNELPROOF_TIMELINE": str(timeline)},
    )  # fmt: skip
    wall = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{problem}: {done.stderr[-3000:]}{done.stdout[-1000:]}")
    record = json.loads(done.stdout)
    timing = record["timing"]
    problems = {b["name"]: b["problem"] for b in timing["baselines"] if b["problem"]}
    return {
        "problem": problem,
        "load before": load,
        "wall": wall,
        "after build": wall - record["build"]["seconds"],
        "build": record["build"]["seconds"],
        "baselines": [b["name"] for b in timing["baselines"]],
        "without a time": problems,
        "notes": timing["notes"],
        "environment": record["environment"],
        "stages": json.loads(timeline.read_text()),
    }


def import_without_bytecode() -> float:
    """Seconds of importing torch where Python has no compiled copies of its modules."""
    code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
    with tempfile.TemporaryDirectory() as empty:
        bare = {"PYTHONPYCACHEPREFIX": empty, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, **bare},
        )  # fmt: skip
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--problem", action="append", choices=BASELINES)
    given = parser.parse_args()
    command = [sys.executable, "-m", "kernelproof", "floors", "--device", given.device]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    runs: list[dict[str, Any]] = []
    body: dict[str, Any] = {}
    for problem in given.problem or BASELINES:
        for _ in range(given.runs):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(run(problem, given.device, Path(folder)))
            print(f"{problem:18} {runs[-1]['wall']:6.2f} s, after build", end=" ")
            print(f"{runs[-1]['after build']:6.2f} s", flush=True)
            environment = runs[-1].pop("environment")
            body = {
                "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                "environment": environment,
                "runs": runs,
            }
            given.output.write_text(json.dumps(body, indent=1) + "\n")
    body["import of torch without bytecode"] = [import_without_bytecode() for _ in range(2)]
    given.output.write_text(json.dumps(body, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
