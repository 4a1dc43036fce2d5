"""What `kernelproof suite run` has found for KernelBench's problems, as a results file.

    kernelproof suite run KERNELBENCH reference --level 1 --no-time --quick --seeds 1 --lanes 3
    python benchmarks/kernelbench_run.py RUN [--store URL] [--also FILE] [--output FILE]

The reference is its own candidate, on the declared inputs and one seed: what fits the machine must
pass. The run may have been resumed as often as it took, and may be of a part of the suite:
``--also`` takes from an earlier results file what this run has not reached, and how many problems
there are.
Each row names the commit that judged it. What was lost counts as not reached.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def row(result: Any, record: Any, commit: str) -> dict[str, Any]:
    """One problem; ``record`` is None where there is none."""
    found = {
        "problem": f"{result.item} {Path(result.problem).stem.partition('_')[2]}",
        "commit": commit, "status": result.status, "seconds": round(result.seconds, 1),
        "attempts": result.attempts, "compat": result.compat,
        "message": result.message.replace(f"{Path(result.problem).parent}/", "")[:300],
    }  # fmt: skip
    if result.harness is not None and result.harness.accepted is not True:
        found["harness"] = [result.harness.word, *result.harness.reasons]
    if record is not None:
        outputs = [output for run in record.verdict.runs for output in run.outputs]
        found |= {
            "sizes": record.problem.sizes,
            "elements": max((math.prod(o.shape) for o in outputs), default=0),
            "ratio": max((max(o.ratio_rows, o.ratio_all) for o in outputs), default=0.0),
            "notes": list(record.verdict.notes),
        }
    return {key: value for key, value in found.items() if value not in ("", [], {})}


def merged(new: list[dict[str, Any]], also: dict[str, Any]) -> list[dict[str, Any]]:
    """``new`` with the rows of another results file whose problems are not among them."""
    judged = {one["problem"] for one in new}
    return new + [one for one in also["rows"] if one["problem"] not in judged]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--store")
    parser.add_argument("--commit", default="", help="of what ran where there was no git")
    parser.add_argument("--suite", default="", help="its name, where the run is of a part")
    parser.add_argument("--also", type=Path, help="an earlier results file")
    parser.add_argument(
        "--output", type=Path, default=ROOT / "results/h200/kernelbench-level1.json"
    )
    args = parser.parse_args()
    from kernelproof.store import Store
    from kernelproof.suite import runs
    from kernelproof.suite.results import AGAIN

    state, records = runs.state(args.run, store=args.store), Store(args.store)
    rows, machines = [], {}
    for result in state.results:
        if result.status in AGAIN:
            continue
        record = records.get(result.record_id) if result.record_id else None
        commit = args.commit
        if record is not None:
            made = record.environment
            commit = made.commit or args.commit
            machines[made.gpu or made.cpu] = {"torch": made.torch, "driver": made.gpu_driver}
        rows.append(row(result, record, commit))
    problems = state.run.count
    if args.also is not None:
        also = json.loads(args.also.read_text())
        rows = merged(rows, also)
        problems = max(problems, also["problems"])
        machines = {**also["machines"], **machines}
    rows.sort(key=lambda one: runs.by_name(one["problem"]))
    counts = Counter(one["status"] for one in rows)
    body = {
        "suite": args.suite or state.run.suite, "date": f"{state.run.created:%F}",
        "machines": machines, "options": state.run.options, "problems": problems,
        "left": problems - len(rows), "statuses": dict(counts.most_common()), "rows": rows,
    }  # fmt: skip
    args.output.write_text(json.dumps(body, indent=1) + "\n")
    print(f"{problems} problems, {body['left']} left: {dict(counts.most_common())}")


if __name__ == "__main__":
    main()
