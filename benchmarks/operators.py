"""Judge and time the shipped operators on this machine; write the records to results/.

    python benchmarks/operators.py [--quick] [--device cuda]

Writes results/<machine>/<date>-operators.json (records with every sample) and prints the table.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

from kernelproof import demo
from kernelproof.environment import capture
from kernelproof.report import summary
from kernelproof.store import write_json
from kernelproof.types import Record

RESULTS = Path(__file__).resolve().parents[1] / "results"


def machine_folder() -> Path:
    """results/h200 for an "NVIDIA H200"; results/cpu without a GPU."""
    name = capture().gpu.removeprefix("NVIDIA ").lower()
    folder = RESULTS / (re.sub(r"[^a-z0-9]+", "-", name).strip("-") or "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def with_commit(record: Record, commit: str) -> Record:
    """``record`` with ``commit`` where its environment names none."""
    if record.environment.commit or not commit:
        return record
    environment = record.environment.model_copy(update={"commit": commit})
    return record.model_copy(update={"environment": environment})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default=None)
    parser.add_argument("--compile-timeout", type=float, default=150.0)
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    parser.add_argument("--output", type=Path, default=None)
    given = parser.parse_args()
    started = datetime.date.today()
    records = demo.run(
        quick=given.quick,
        device=given.device,
        compile_timeout=given.compile_timeout,
        progress=lambda what, done, total: print(f"{what} {done}/{total}", file=sys.stderr),
    )
    records = [with_commit(record, given.commit) for record in records]
    output = given.output or machine_folder() / f"{started}-operators.json"
    write_json(records, output)
    print(summary(records))
    print(f"records: {output}")
    return 0 if all(record.status == "pass" for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
