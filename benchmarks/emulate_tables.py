"""Measures the emulator for docs/emulate.md: planted bugs, removed barriers, and times.

python benchmarks/emulate_tables.py              writes results/emulator/<date>-emulate.json
python benchmarks/emulate_tables.py mla_kv ...   renews the removed barriers of sources with these
                                                 words in their names, in the newest results
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "emulate"), str(ROOT / "benchmarks")]

import emulate_corpus  # noqa: E402
import emulate_mutations  # noqa: E402
import hopper_corpus  # noqa: E402

from kernelproof.pipeline import Options, judge  # noqa: E402

CORPORA = (emulate_corpus, hopper_corpus)


def clean() -> list[dict[str, Any]]:
    found = []
    for corpus, kernel in [(c, kernel) for c in CORPORA for kernel in c.CLEAN]:
        corpus.run(kernel, corpus.text(kernel))  # compiles
        result, _ = corpus.run(kernel, corpus.text(kernel))
        found.append(
            {
                "kernel": kernel,
                "findings": [str(f) for f in result.findings],
                "steps": result.steps,
                "seconds": result.seconds,
            }
        )
    return found


def bugs() -> list[dict[str, Any]]:
    found = []
    for corpus, bug in [(c, bug) for c in CORPORA for bug in c.BUGS]:
        source, lines = corpus.planted(bug)
        result, _ = corpus.run(bug.kernel, source)
        hits = [f for f in result.errors if f.kind == bug.kind]
        there = [f for f in hits if set(corpus.places(f)) & set(lines)]
        found.append(
            {
                "kernel": bug.kernel,
                "kind": bug.kind,
                "found": bool(hits),
                "line": bool(there),
                "message": str((there or hits or [""])[0]),
            }
        )
    return found


def founding() -> list[dict[str, Any]]:
    """Processor time and wall time of an emulated check of the founding case, worker included."""
    found = []
    for name in ("gated_recurrence", "int8_attention", "mla_kv"):
        options = Options(device="cpu", seeds=1, seed=1, cases=("founding",), level="quick")
        judge(name, "cuda", options=options)
        started = time.perf_counter()
        record = judge(name, "cuda", options=options)
        found.append(
            {
                "problem": name,
                "status": record.status,
                "wall": time.perf_counter() - started,
                "check": record.verdict.seconds,
            }
        )
    return found


def renew(words: list[str]) -> None:
    """Rows of `emulate_mutations` for sources that have one of these words in their names."""
    path = max((ROOT / "results" / "emulator").glob("*-emulate.json"))
    out = json.loads(path.read_text())
    new = [row for word in words for row in emulate_mutations.rows(word)]
    kept = [row for row in out["mutations"] if not any(row["kernel"].startswith(w) for w in words)]
    out["mutations"] = sorted(kept + new, key=lambda row: row["kernel"])
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(path)


def main() -> None:
    if sys.argv[1:]:
        renew(sys.argv[1:])
        return
    day = datetime.date.today().isoformat()
    path = ROOT / "results" / "emulator" / f"{day}-emulate.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    out = {
        "date": day,
        "clean": clean(),
        "bugs": bugs(),
        "founding": founding(),
        "mutations": list(emulate_mutations.rows()),
    }
    path.write_text(json.dumps(out, indent=1) + "\n")
    print(path)


if __name__ == "__main__":
    main()
