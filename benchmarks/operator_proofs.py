"""What proofs of the shipped operators say, by problem, device and accuracy.

    kernelproof prove int8_attention_forms cpu --thorough -o FILE
    kernelproof prove int8_attention_forms cuda --thorough -o FILE
    kernelproof prove mla_kv cuda --thorough -o FILE
    python benchmarks/operator_proofs.py [--commit COMMIT] FILE ...

Writes results/operator-proofs.json: a row for each problem, device and accuracy (of
int8_attention; "" for the others), with the number of runs and the largest error in units of that
of an honest computation. Rows of a problem, device and accuracy that are there already are
replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from kernelproof import problem, proof_file

ROOT = Path(__file__).resolve().parents[1]
OPERATORS = ("mla_kv", "gated_recurrence", "int8_attention")


def rows(path: Path, commit: str) -> list[dict[str, Any]]:
    """Raises ValueError for a file that is no proof of an operator."""
    read = proof_file.read(path)
    if read.proof is None or read.edited or not read.proof.problem.name.startswith(OPERATORS):
        raise ValueError(f"{path} is not a proof of {' or '.join(OPERATORS)} as it was written")
    record, name = read.proof.record, read.proof.problem.name
    tiers = name.startswith("int8_attention")
    sizes = {case.name: dict(case.sizes) for case in problem.load(name).problem.cases}
    found: dict[str, dict[str, Any]] = {}
    for run in record.verdict.runs:
        accuracy = sizes[run.case].get("accuracy", "strict") if tiers else ""
        row = found.setdefault(
            accuracy,
            {
                "problem": name, "device": record.verdict.device, "accuracy": accuracy,
                "machine": record.environment.gpu or record.environment.cpu,
                "torch": record.environment.torch,
                "commit": commit or record.environment.commit,
                "date": record.created.date().isoformat(),
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
        "-o", "--output", type=Path, default=ROOT / "results" / "operator-proofs.json"
    )
    parser.add_argument("--commit", default="", help="of what was proved where there was no git")
    parser.add_argument("proofs", type=Path, nargs="+")
    given = parser.parse_args()
    kept = json.loads(given.output.read_text()) if given.output.is_file() else []
    new = [row for path in given.proofs for row in rows(path, given.commit)]

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
