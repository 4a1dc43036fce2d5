"""What longer chunks changed, from times of the kernels before and now, interleaved on one GPU.

python benchmarks/gated_chunks.py --commit COMMIT --date DATE --gpu GPU --torch VERSION FILE

FILE is JSON: {"cases": {case: {"before": run, "shipped": run, variant: run}}}, each run with "us"
(microseconds of a call in a CUDA graph of 10), "errors" (root mean square relative to float64, by
family of gates), "segments" (how many, steps of the first, of each other) and "chunk", or with
"failed". "before" is the choice of kernels without wide.cu. Writes
results/h200/gated_recurrence-chunks.json, whose rows have the names of those in
results/h200/gated_recurrence.json; docs/gated_tables.py makes the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "results" / "h200" / "gated_recurrence-chunks.json"
# Name of a row: case, and the run that goes as calls do now.
CASES = {
    "B8 T2048 H16 64x64, head gate": ("h 64 B8T2048H16", "shipped"),
    "B4 T4096 H8 128x128, head gate": ("h 128 B4T4096H8", "shipped"),
    "B2 T2048 H4 256x512, head gate": ("h 256x512 B2T2048H4", "shipped"),
    "bf16 h B2 T600 H8 48x80": ("h 48x80 B2T600H8", "shipped"),
    "bf16 no gate B8 T2048 H16 64x64": ("no gate 64 B8T2048H16", "L2048"),
    "B2 T2048 H4 256x512, key gate": ("k 256x512 B2T2048H4", "shipped"),
    "bf16 k B1 T2048 H4 256x512": ("k 256x512 B1T2048H4", "shipped"),
    "bf16 kh B2 T2048 H4 256x512": ("kh 256x512 B2T2048H4", "shipped"),
    "fp32 B4 T4096 H8 128x128, key gate": ("fp32 k 128 B4T4096H8", "shipped"),
    "fp32 B1 T16384 H16 128x128, key gate": ("fp32 k 128 B1T16384H16", "shipped"),
    "fp32 B2 T2048 H4 256x512, key gate": ("fp32 k 256x512 B2T2048H4", "shipped"),
}
# Of the run before, which timed these in one segment, as calls go now.
EARLIER = {
    "bf16 no gate B4 T2048 H16 64x64": {
        "before_us": 50.9, "now_us": 40.0, "errors": {"largest": 0.002349869843016115},
        "segments": [1, 2048, 2048], "chunk": 64,
        "note": "of the run before; two, which the commit takes, had 30.8 us in the last run",
    },
}  # fmt: skip
NOTES = {
    "bf16 no gate B8 T2048 H16 64x64": (
        "one segment, as is chosen since that run; two, which the commit takes, had 61.0 us"
    ),
    "fp32 B2 T2048 H4 256x512, key gate": (
        "the kernels before were not timed, because they did not pass a check of that run "
        "(gates above one, 600 steps, an error of 1.82e-6); 388.8 us in the run before"
    ),
}


def row(name: str, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """One problem; the time before is None where that run failed."""
    return {
        "name": name, "before_us": before.get("us"), "now_us": now["us"],
        "errors": now["errors"], "segments": now["segments"], "chunk": now["chunk"],
        "note": NOTES.get(name, ""),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for option in ("commit", "date", "gpu", "torch"):
        parser.add_argument(f"--{option}", required=True)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    cases = json.loads(given.file.read_text())["cases"]
    rows = []
    for name, (case, run) in CASES.items():
        rows.append(row(name, cases[case]["before"], cases[case][run]))
    rows += [{"name": name, **made} for name, made in EARLIER.items()]
    for made in rows:
        before = made["before_us"]
        made["ratio"] = made["now_us"] / before if before else None
    out = {"date": given.date, "gpu": given.gpu, "torch": given.torch, "commit": given.commit}
    OUT.write_text(json.dumps({**out, "rows": rows}, indent=1) + "\n")
    print(OUT)


if __name__ == "__main__":
    main()
