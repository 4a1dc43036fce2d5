"""What proofs of int8_attention say, by accuracy and device.

    kernelproof prove int8_attention_forms cpu --thorough -o FILE
    kernelproof prove int8_attention_forms cuda --thorough -o FILE
    python benchmarks/int8_attention_proofs.py FILE ...

Writes results/int8_attention-proofs.json: a row for each problem, device and accuracy, with the
number of runs and the largest error in units of that of an honest computation. Rows of a problem,
device and accuracy that are there already are replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kernelproof import proof_file
from kernelproof.ops.int8_attention import problem, problem_forms

ROOT = Path(__file__).resolve().parents[1]
CASES = {"int8_attention": problem.CASES, "int8_attention_forms": problem_forms.CASES}


def rows(path: Path) -> list[dict[str, Any]]:
    """Raises ValueError for a file that is no proof of int8_attention."""
    read = proof_file.read(path)
    if read.proof is None or read.edited or read.proof.problem.name not in CASES:
        raise ValueError(f"{path} is not a proof of {' or '.join(CASES)} as it was written")
    record, name = read.proof.record, read.proof.problem.name
    found: dict[str, dict[str, Any]] = {}
    for run in record.verdict.runs:
        accuracy = CASES[name][run.case].get("accuracy", "strict")
        row = found.setdefault(
            accuracy,
            {
                "problem": name, "device": record.verdict.device, "accuracy": accuracy,
                "machine": record.environment.gpu or record.environment.cpu,
                "torch": record.environment.torch, "date": record.created.date().isoformat(),
                "level": read.proof.request.level, "limit": record.verdict.limit,
                "status": record.verdict.status, "cases": [], "runs": 0, "passed": 0, "worst": 0.0,
                "sha256": read.sha256,
            },
        )  # fmt: skip
        row["cases"] = sorted({*row["cases"], run.case})
        row["runs"] += 1
        row["passed"] += run.status == "pass"
        ratios = [r for o in run.outputs for r in (o.ratio_rows, o.ratio_all) if r is not None]
        row["worst"] = max([row["worst"], *ratios])
    return list(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "results" / "int8_attention-proofs.json"
    )
    parser.add_argument("proofs", type=Path, nargs="+")
    given = parser.parse_args()
    kept = json.loads(given.output.read_text()) if given.output.is_file() else []
    new = [row for path in given.proofs for row in rows(path)]

    def place(row: dict[str, Any]) -> tuple[str, ...]:
        return row["problem"], row["device"], row["accuracy"]

    kept = [row for row in kept if place(row) not in {place(r) for r in new}]
    given.output.write_text(json.dumps(sorted([*kept, *new], key=place), indent=1) + "\n")
    for row in new:
        print(
            *place(row), row["status"], f"{row['passed']} of {row['runs']}", f"{row['worst']:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
