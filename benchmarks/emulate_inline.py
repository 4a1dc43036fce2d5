"""Judges candidates of load_inline in the emulator, on a machine without a GPU.

python benchmarks/emulate_inline.py [NAME...]   writes results/emulator/inline.json when all ran

Each candidate in benchmarks/inline says which status it must get and, where it is faulty, which
finding; the line of the finding is marked `// finding` in it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from kernelproof.pipeline import Options, judge

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "inline"


def candidates() -> list[Path]:
    return [p for p in sorted(FOLDER.glob("*.py")) if not p.name.startswith("problem_")]


def problem_of(path: Path) -> Path:
    """The problem whose name the candidate's begins with."""
    found = [p for p in FOLDER.glob("problem_*.py") if path.stem.startswith(p.stem[8:])]
    return max(found, key=lambda p: len(p.stem))


def run(path: Path) -> dict[str, Any]:
    text = path.read_text()
    expected = re.search(r'^EXPECT = "(.*)"', text, re.M)
    finding = re.search(r'^FINDING = "(.*)"', text, re.M)
    marks = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("// finding")]
    assert expected is not None
    started = time.perf_counter()
    record = judge(problem_of(path), path, options=Options(device="cpu", seed=1))
    first = time.perf_counter() - started
    started = time.perf_counter()
    judge(problem_of(path), path, options=Options(device="cpu", seed=1))
    told = "\n".join([record.verdict.message, *(c.message for c in record.verdict.checks)])
    return {
        "candidate": path.stem,
        "expected": expected[1],
        "status": record.status,
        "evidence": record.verdict.evidence,
        "finding": finding[1] if finding else "",
        "lines": marks,
        "line_right": all(f"{path.name}:{n}: {finding[1]}" in told for n in marks)
        if finding
        else not re.search(rf"{path.name}:\d+: (race|out of bounds|uninitialised)", told),
        "message": told[:400],
        "first_seconds": round(first, 2),
        "cached_seconds": round(time.perf_counter() - started, 2),
    }


def main() -> int:
    chosen = [p for p in candidates() if not sys.argv[1:] or p.stem in sys.argv[1:]]
    rows = []
    for path in chosen:
        row = run(path)
        rows.append(row)
        right = row["status"] == row["expected"] and row["line_right"]
        print("ok   " if right else "WRONG", json.dumps(row) if not right else row["candidate"],
              row["first_seconds"], row["cached_seconds"], flush=True)  # fmt: skip
    if not sys.argv[1:]:
        out = {"torch": importlib.metadata.version("torch"), "rows": rows}
        (ROOT / "results" / "emulator" / "inline.json").write_text(json.dumps(out, indent=1) + "\n")
    return sum(r["status"] != r["expected"] or not r["line_right"] for r in rows)


if __name__ == "__main__":
    sys.exit(main())
