"""Judge and time mla_kv's CPU kernel at several sizes beside PyTorch's operations.

    python benchmarks/mla_kv_cpu.py [--seconds 10] [--only founding]

Writes results/<machine>/mla_kv_cpu.json, the records with every sample.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from operators import machine_folder, with_commit

from kernelproof.pipeline import Options, judge
from kernelproof.report import summary
from kernelproof.store import write_json
from kernelproof.worker.client import start_server

# Of a layer of DeepSeek-V2-Lite.
_LAYER = dict(batch=1, model=2048, rank=512, kv_heads=16, head_dim=128)
SIZES: dict[str, dict[str, int]] = {
    "founding": {},
    "one token": {**_LAYER, "seq": 1},
    "16 tokens": {**_LAYER, "seq": 16},
    "64 tokens": {**_LAYER, "seq": 64},
    "512 tokens": {**_LAYER, "seq": 512},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    given = parser.parse_args()
    start_server()
    records = []
    for name, sizes in SIZES.items():
        if given.only and name not in given.only:
            continue
        options = Options(
            cases=("founding",), case_sizes=tuple(sizes.items()), level="quick",
            baselines=("eager", "two matmuls", "written in place"), seconds=given.seconds,
        )  # fmt: skip
        record = judge("mla_kv", "cpu", timed=True, options=options)
        records.append(with_commit(record, given.commit))
        print(name)
        print(summary(records[-1:]), flush=True)
    write_json(records, given.output or machine_folder() / "mla_kv_cpu.json")


if __name__ == "__main__":
    main()
