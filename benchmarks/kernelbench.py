"""Judge ``ModelNew = Model`` for every problem of a KernelBench checkout: what loads, what passes.

    python benchmarks/kernelbench.py PATH [--levels 1 2] [--shrink 1000000] [--output FILE]

PATH is the user's own checkout (the folder that holds ``level1``). Sizes are halved until the
inputs fit in ``--shrink`` bytes, so that a CPU can do it. An honest candidate must pass on every
problem; whatever does not is printed with its reason.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def judge(path: Path, folder: Path, shrink: int, timeout: float) -> dict[str, str]:
    """One problem in a process of its own, so that a hang costs one result."""
    candidate = folder / f"{path.parent.name}_{path.stem}.py"
    candidate.write_text(f"{path.read_text()}\n\nModelNew = Model\n")
    command = [
        sys.executable, "-m", "kernelproof", "check", str(path), str(candidate),
        "--shrink", str(shrink), "--seeds", "2", "--json", "--timeout", str(timeout),
    ]  # fmt: skip
    name = f"{path.parent.name}/{path.stem}"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=3 * timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": name, "status": "too slow here", "message": f"over {3 * timeout:g} s"}
    if done.returncode in (0, 1):
        body = json.loads(done.stdout)
        sizes = body["problem"]["sizes"]
        return {
            "problem": name,
            "status": body["status"],
            "message": body["verdict"]["message"],
            "sizes": ", ".join(f"{k}={v}" for k, v in sizes.items()),
            "compat": str(body["verdict"]["compat"]),
            "notes": "; ".join(body["verdict"]["notes"]),
        }
    lines = [x for x in done.stderr.splitlines() if x.strip()]
    return {"problem": name, "status": f"exit {done.returncode}", "message": lines[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--levels", nargs="+", default=["1", "2"])
    parser.add_argument("--shrink", type=int, default=1_000_000)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path, default=None)
    given = parser.parse_args()
    files = [p for n in given.levels for p in sorted((given.path / f"level{n}").glob("*.py"))]
    if not files:
        print(f"no problems under {given.path}/level*", file=sys.stderr)
        return 2
    results = []
    with (
        tempfile.TemporaryDirectory() as folder,
        concurrent.futures.ThreadPoolExecutor(given.jobs) as pool,
    ):
        jobs = [pool.submit(judge, p, Path(folder), given.shrink, given.timeout) for p in files]
        for job in concurrent.futures.as_completed(jobs):
            results.append(job.result())
            print(f"{len(results)}/{len(files)}", results[-1], file=sys.stderr, flush=True)
    counts = collections.Counter((r["problem"].split("/")[0], r["status"]) for r in results)
    for (level, status), count in sorted(counts.items()):
        print(f"{level}  {status:14} {count}")
    for result in sorted(results, key=lambda r: r["problem"]):
        if result["status"] != "pass":
            print(f"{result['problem']}: {result['status']}: {result['message']}")
    if given.output is not None:
        given.output.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
