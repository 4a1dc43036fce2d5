"""Times of mla_kv's CPU kernel beside PyTorch's operations.

    python benchmarks/mla_kv_cpu.py                 processor time on one thread: also where the
                                                    machine has other work
    python benchmarks/mla_kv_cpu.py --records       judged and timed on all threads

Writes results/<machine>/mla_kv_cpu.json, or mla_kv_cpu_records.json with every sample.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from operators import machine_folder, with_commit

from kernelproof.environment import capture
from kernelproof.ops.mla_kv import cpu, problem
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
_OTHERS = ("eager", "two matmuls", "written in place")


def processor_seconds(sizes: dict[str, int], linear: bool, budget: float) -> dict[str, list[float]]:
    """Processor time of every call of each contestant, in turn, for ``budget`` seconds of wall
    time (five rounds at least). ``linear``: weights as nn.Linear stores them."""
    torch.manual_seed(0)
    hidden, *weights = problem.get_inputs(**sizes)
    if linear:
        weights = [w.t().contiguous().t() for w in weights]
    heads = sizes.get("kv_heads", 4)
    calls: dict[str, Callable[..., Any]] = {
        "mla_kv": cpu.ModelNew(heads),
        "eager": problem.Model(heads),
    }
    calls |= {name: problem.BASELINES[name](heads) for name in _OTHERS[1:]}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    started, rounds = time.perf_counter(), 0
    while rounds < 7 or time.perf_counter() - started < budget:
        for name, call in calls.items():
            before = time.thread_time()
            call(hidden, *weights)
            if rounds >= 2:  # the first compile, and fill caches
                seconds[name].append(time.thread_time() - before)
        rounds += 1
    return seconds


def records(given: argparse.Namespace) -> None:
    start_server()
    found = []
    for name, sizes in SIZES.items():
        options = Options(
            cases=("founding",), case_sizes=tuple(sizes.items()), level="quick",
            baselines=_OTHERS, seconds=given.seconds,
        )  # fmt: skip
        record = judge("mla_kv", "cpu", timed=True, options=options)
        found.append(with_commit(record, given.commit))
        print(name)
        print(summary(found[-1:]), flush=True)
    write_json(found, given.output or machine_folder() / "mla_kv_cpu_records.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--commit", default="", help="of the sources, where git cannot tell")
    given = parser.parse_args()
    if given.records:
        records(given)
        return
    torch.set_num_threads(1)
    rows = []
    with torch.no_grad():
        for name, sizes in SIZES.items():
            for linear in (False, True):
                taken = processor_seconds(sizes, linear, given.seconds)
                rows.append({"name": name, "linear": linear, "sizes": sizes, "seconds": taken})
                print(name, linear, {k: round(min(v) * 1e6) for k, v in taken.items()}, flush=True)
    body = {
        "environment": json.loads(capture().model_dump_json()), "commit": given.commit,
        "instructions": cpu.instruction_sets()[-1], "rows": rows,
    }  # fmt: skip
    path = given.output or machine_folder() / "mla_kv_cpu.json"
    path.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
