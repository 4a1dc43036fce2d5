"""Floors of this device, and the shares of them that kernels reach; writes JSON files to a folder.

    python benchmarks/floors.py --out DIR [--device cuda]

Parts, each in a process of its own that is ended when it takes too long; what it has by then is
in its file:

    floors   measured twice: figures, seconds, how far two measurements differ
    trace    FLOPs and bytes of every problem's first case, on the device and on the CPU
    ops      the shipped operators: time, bounds, share of the floor, what is suspicious
    limits   kernels of PyTorch that should come near a limit: a copy, a reduction, a product
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_SECONDS = {"floors": 50, "trace": 40, "ops": 80, "limits": 60}

COPY = """
import torch
from torch import nn

class {name}(nn.Module):
    def forward(self, x):
        return x.clone()

def get_inputs(count={count}):
    return [torch.rand(count)]
"""
SUM = COPY.replace("x.clone()", "x.sum()")
PRODUCT = """
import torch
from torch import nn

class {name}(nn.Module):
    def forward(self, a, b):
        return a @ b

def get_inputs(order={count}):
    return [torch.randn(order, order, dtype=torch.{dtype}) for _ in range(2)]
"""


# What a part finds, by name, in turn.
Part = Iterator[tuple[str, Any]]


def part_floors(device: str) -> Part:
    from kernelproof import floors

    found = []
    for number in range(2):
        started = time.perf_counter()
        one = floors.get(device, refresh=True)
        wall = time.perf_counter() - started
        found.append({"wall_seconds": wall, **json.loads(one.model_dump_json())})
        yield f"measured {number + 1}", found[-1]
    first, second = (_rates(one) for one in found)
    differ = {key: second[key] / first[key] - 1 for key in first if key in second}
    yield "second over first, minus 1", differ


def _rates(one: dict[str, Any]) -> dict[str, float]:
    rates = {"call": one["call"]}
    for kind in ("matrix", "vector"):
        rates |= {f"{kind} {name}": rate for name, rate in one[kind].items()}
    for entry in one["bandwidth"]:
        rates |= {f"{k} {entry['size']}": entry[k] for k in ("read", "write", "copied")}
    return rates


def part_trace(device: str) -> Part:
    import torch

    from kernelproof import problem
    from kernelproof.check.reference import construct
    from kernelproof.check.values import to_device
    from kernelproof.work import settled, trace

    for name in sorted(problem.known_problems()):
        reference = problem.load(name)
        case = reference.problem.cases[0]
        args, kwargs = reference.init_args(case)
        row: dict[str, Any] = {"case": case.name}
        for place in dict.fromkeys((device, "cpu")):
            model = construct(reference.module.Model, args, kwargs, 0, place)
            torch.manual_seed(0)
            inputs = to_device(reference.inputs(case), place)
            try:
                work = trace(model, inputs)
            except Exception as error:
                row[place] = f"{type(error).__name__}: {error}"
                continue
            own = settled(work, reference.count("FLOPS", case), reference.count("BYTES", case))
            row[place] = {**work.model_dump(), "declared_differ": own.notes}
        row["same"] = row.get(device) == row.get("cpu")
        yield name, row


def _timed(problem: str, candidate: str, device: str, **options: Any) -> Any:
    from kernelproof.pipeline import Options, judge

    given = {"level": "quick", "baselines": ("eager",), "rounds": 15, "seconds": 6.0, **options}
    record = judge(problem, candidate, timed=True, options=Options(device=device, **given))
    timing = record.timing
    row: dict[str, Any] = {"status": record.status, "message": record.verdict.message}
    if timing is None:
        return row
    series = timing.candidate.device or timing.candidate.host
    row |= {
        "median": series.median if series else None,
        "work": timing.work.model_dump() if timing.work else None,
        "limit": timing.limit.model_dump() if timing.limit else None,
        "notes": timing.notes,
        "baselines": {
            one.name: (one.device or one.host).median  # type: ignore[union-attr]
            for one in timing.baselines
            if one.device or one.host
        },
    }
    return row


def part_ops(device: str) -> Part:
    from kernelproof.problem import shipped_operators

    kind = "cpu" if device == "cpu" else "cuda"
    for name in shipped_operators():
        yield name, _timed(name, kind, device, cases=("founding",))


def part_limits(device: str) -> Part:
    small = device == "cpu"
    sources = {
        "copy": (COPY, {"count": (1 << 22) if small else (1 << 25)}),
        "copy in the cache": (COPY, {"count": 1 << 18}),
        "sum": (SUM, {"count": (1 << 22) if small else (1 << 25)}),
        "fp32 product": (PRODUCT, {"count": 512 if small else 2048, "dtype": "float32"}),
        "bf16 product": (PRODUCT, {"count": 256 if small else 4096, "dtype": "bfloat16"}),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, values) in sources.items():
            stem = name.replace(" ", "_")
            problem, candidate = Path(folder) / f"{stem}.py", Path(folder) / f"{stem}_new.py"
            problem.write_text(source.format(name="Model", **values))
            candidate.write_text(source.format(name="ModelNew", **values))
            yield name, _timed(str(problem), str(candidate), device)


PARTS: dict[str, Callable[[str], Part]] = {
    "floors": part_floors, "trace": part_trace, "ops": part_ops, "limits": part_limits,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a part ended."""

    status: str
    seconds: float


def apart(part: str, device: str, out: Path) -> Ended:
    """Run one part in a process group of its own, which is ended when its time is over."""
    command = [sys.executable, __file__, "--part", part, "--device", device, "--out", str(out)]
    started = time.perf_counter()
    with (out / f"{part}.log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            code = child.wait(timeout=_SECONDS[part])
            status = "done" if code == 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            status = f"ended after {_SECONDS[part]} s"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return Ended(status, time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", choices=sorted(PARTS), default=None)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.part is not None:
        found = {}
        for name, value in PARTS[given.part](given.device):
            found[name] = value
            (given.out / f"{given.part}.json").write_text(json.dumps(found, indent=1) + "\n")
        return 0
    from kernelproof.environment import capture

    ends = {}
    for part in PARTS:
        ends[part] = apart(part, given.device, given.out)
        print(f"{part}: {ends[part].status}, {ends[part].seconds:.1f} s", flush=True)
    summary = {
        "environment": json.loads(capture().model_dump_json()),
        "parts": {part: dataclasses.asdict(end) for part, end in ends.items()},
    }
    (given.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return 0 if all(end.status == "done" for end in ends.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
