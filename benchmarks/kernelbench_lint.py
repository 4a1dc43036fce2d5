"""Lint every problem of a KernelBench checkout: which accept zeros, the input or a constant?

    python benchmarks/kernelbench_lint.py PATH [--levels 1 2 3] [--shrink 400000] [--limit 90]

PATH is the user's own checkout (the folder that holds ``level1``). Sizes are reduced so that a CPU
can do it: the batch first, since rows of a batch are alike, then the others until the inputs fit in
``--shrink`` bytes; each row says at which sizes. A problem that does not end within ``--limit``
seconds is ``unsupported`` with that reason. Rows go to results/kernelbench-lint.json as they come;
what it holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kernelproof.resize import size_constants

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "results" / "kernelbench-lint.json"
# What the questions are about: outputs that need no work at all. "Identity" is a copy of an input.
FORGED = {
    "zeros": "zeros", "ones": "constant", "constant (mean of another run)": "constant",
    "output of another run": "constant",
}  # fmt: skip


# In a process of its own: path, bytes, sizes and the seconds are arguments.
ONE = """
import json, sys
from kernelproof import lint, problem
from kernelproof.suite.formats.kernelbench import trains
path, shrink, sizes = problem.find(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
reference = problem.load(path, sizes, shrink, trains(path))
report = lint.examine(reference, max_bytes=shrink)
about = {"sizes": reference.problem.sizes, "training": reference.problem.training}
print(json.dumps({**json.loads(report.model_dump_json()), **about}))
"""


def lint(path: Path, shrink: int, limit: float) -> dict[str, Any]:
    """The row of one problem."""
    row: dict[str, Any] = {"problem": f"{path.parent.name}/{path.stem}", "status": "unsupported"}
    started = time.perf_counter()
    # A batch of two keeps the length of a row, on which the size of its values hangs.
    for sizes in ({"batch_size": 2},) * _has_batch(path) + ({},):
        command = [sys.executable, "-c", ONE, str(path), str(shrink), json.dumps(sizes)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            row["reason"] = f"not done in {limit:g} s on a CPU at inputs of {shrink} bytes"
            break
        if done.returncode == 0:
            row.pop("reason", None)
            row |= _told(json.loads(done.stdout))
            break
        lines = [x for x in done.stderr.splitlines() if x.strip()]
        last = lines[-1] if lines else f"exit {done.returncode}"
        row["reason"] = last.replace(f"{path.parent}/", "")[:300]
    row["seconds"] = round(time.perf_counter() - started, 1)
    return row


def _has_batch(path: Path) -> bool:
    from kernelproof.errors import ProblemError
    from kernelproof.problem import load

    try:
        load(path)
    except ProblemError:
        return False  # the lint itself says why
    return "batch_size" in size_constants(path.read_text(), vars(load(path).module))


def _told(report: dict[str, Any]) -> dict[str, Any]:
    accepted: dict[str, list[str]] = {"proof": [], "compat": []}
    for cheat in report["cheats"]:
        name = FORGED.get(cheat["name"], "")
        if cheat["name"].startswith("copy of input "):
            name = "identity"
        for verdict, names in accepted.items():
            if name and cheat[verdict] == cheat["cases"] and name not in names:
                names.append(name)
    return {
        "status": "linted",
        "sizes": report["sizes"],
        "training": report["training"],
        "clean": not any(f["level"] == "error" for f in report["findings"]),
        "accepts": accepted,
        "cheats": len(report["cheats"]),
        "compat_accepts": sum(c["compat"] == c["cases"] for c in report["cheats"]),
        "proof_accepts": [
            f"{c['name']}" + (f" ({c['subject']})" if c["kind"] == "output" else "")
            for c in report["cheats"]
            if c["proof"] == c["cases"]
        ],
        "findings": [f"{f['level']} {f['code']}: {f['subject']}" for f in report["findings"]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--levels", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--shrink", type=int, default=400_000)
    parser.add_argument("--limit", type=float, default=90.0)
    parser.add_argument("--only", nargs="*", default=[], help="such as level1/23")
    parser.add_argument("--again", action="store_true", help="also what has a row already")
    parser.add_argument("--output", type=Path, default=TARGET)
    given = parser.parse_args()
    files = [
        path
        for level in given.levels
        for path in sorted(
            (given.path / f"level{level}").glob("*.py"), key=lambda p: int(p.name.split("_")[0])
        )
    ]
    if given.only:
        files = [p for p in files if f"{p.parent.name}/{p.name.split('_')[0]}" in given.only]
    if not files:
        print(f"no problems under {given.path}/level*", file=sys.stderr)
        return 2
    rows = json.loads(given.output.read_text()) if given.output.is_file() else []
    for number, path in enumerate(files, 1):
        name = f"{path.parent.name}/{path.stem}"
        if not given.again and any(r["problem"] == name for r in rows):
            continue
        row = {**lint(path, given.shrink, given.limit), "shrink": given.shrink}
        rows = [r for r in rows if r["problem"] != name] + [row]
        print(f"{number}/{len(files)}", row, file=sys.stderr, flush=True)
        given.output.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
