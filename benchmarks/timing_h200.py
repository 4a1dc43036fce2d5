"""Does the timing tell the same from the same, and 2 % from nothing? On a GPU, in about 5 minutes.

    python benchmarks/timing_h200.py --out DIR [--part NAME ...] [--runs 20]

Parts, each in a process of its own that is killed when it takes too long; one JSON file each:

    clocks     every baseline that a GPU has, on a problem with float32 matrices, and all clocks
    bench      wall time of `kernelproof bench` on a founding problem with three baselines
    compare    five kernels from 2 us to 2 ms: our clocks beside Triton's do_bench, and NVIDIA's
               cuda-bench where it is installed
    same       a candidate against itself, ``--runs`` times: SAME
    slower     beside one that does 2 % less work, as often: SLOWER; and medians of the first and
               the last run of both parts, minutes apart

Writes DIR/timing.json, the summary of all parts, in the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# Part -> seconds after which it is killed.
PARTS = {"clocks": 80, "bench": 75, "compare": 120, "same": 200, "slower": 200}
DEVICE, WORD = "cuda", "cuda"
PROBLEM = """
import torch
from torch import nn

COUNT = {count}

class Model(nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(COUNT)]
"""
# Work that a compiler cannot shorten: v stays what it was, at run time.
CANDIDATE = """
import torch
from torch import nn
from kernelproof.cuda import Kernel

SOURCE = '''
extern "C" __global__ void work(const float* x, float* y, float a, float b, int steps, int n) {{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {{
        float v = x[i];
        for (int s = 0; s < steps; ++s) v = fmaf(v, a, b);
        y[i] = v * 2;
    }}
}}
'''

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = Kernel(SOURCE, "work")

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        blocks = min(132 * 8, (n + 255) // 256)
        self.kernel(x, y, 1.0, 0.0, {steps}, n, grid=blocks, block=256)
        return y
"""
# Name -> elements, steps of dependent FMA (some 4 cycles each).
KERNELS = {
    "short": (1 << 15, 300),
    "in L2": (1 << 20, 0),
    "stream": (1 << 23, 0),
    "middle": (1 << 17, 20_000),
    "long": (1 << 17, 227_000),
}
# A fixed cost of a microsecond or two is in a call of some 40: this is 2 % of the whole.
SLOWED = 20_420


def written(folder: Path, name: str, count: int, steps: int) -> tuple[Path, Path]:
    """Problem and candidate as files."""
    problem = folder / f"problem_{count}.py"
    candidate = folder / f"{name.replace(' ', '_')}_{steps}.py"
    problem.write_text(PROBLEM.format(count=count))
    candidate.write_text(CANDIDATE.format(steps=steps))
    return problem, candidate


def timed(problem: Path | str, candidate: Path | str, **options: Any) -> Any:
    """The record of a judged candidate; raises where it has no timing."""
    from kernelproof.pipeline import Options, judge

    given = {"level": "quick", "seeds": 1, "device": DEVICE, **options}
    record = judge(problem, candidate, timed=True, options=Options(**given))
    if record.timing is None:
        raise RuntimeError(f"{record.status}: {record.verdict.message}\n{record.verdict.detail}")
    return record


def medians(contestant: Any) -> dict[str, float]:
    clocks = ("device", "cold", "single", "host", "warm")
    return {c: getattr(contestant, c).median for c in clocks if getattr(contestant, c) is not None}


def told(timing: Any) -> dict[str, Any]:
    """What of a timing is worth a look."""
    everyone = [timing.candidate, *timing.baselines, timing.floor]
    return {
        "contestants": {
            one.name: medians(one)
            | {
                "rounds": max(one.host.rounds) + 1 if one.host else 0,
                "once": [one.build, one.construction, one.first_call],
                "problem": one.problem,
            }
            for one in everyone
        },
        "ratios": [r.model_dump() for r in timing.ratios],
        "notes": list(timing.notes),
        "seconds": timing.seconds,
        "conditions": timing.conditions.model_dump() | {"gpu": len(timing.conditions.gpu)},
        "gpu": [s.model_dump() for s in timing.conditions.gpu[:3]],
        "throttled": list(timing.throttled),
    }


def clocks(folder: Path, runs: int) -> dict[str, Any]:
    """All baselines of a GPU on `linear_gelu`, whose candidate is the reference itself."""
    from kernelproof import problem

    path = problem.find("linear_gelu")
    candidate = folder / "itself.py"
    candidate.write_text(path.read_text() + "\n\nclass ModelNew(Model):\n    pass\n")
    found = told(timed("linear_gelu", candidate, compile_timeout=60.0, seconds=4.0).timing)
    for name, one in found["contestants"].items():
        if one["problem"]:
            print(f"{name}: {one['problem']}", file=sys.stderr)
    return found


def bench(folder: Path, runs: int) -> dict[str, Any]:
    """Wall time of the whole command, and what of it was what."""
    words = ["bench", "mla_kv", WORD, "--json", "--store", f"sqlite:///{folder / 'r.sqlite'}"]
    for name in ("eager", "torch.compile", "two matmuls"):
        words += ["--baseline", name]
    wall = []
    for _ in range(2):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "kernelproof", *words], capture_output=True, text=True
        )
        wall.append(time.perf_counter() - started)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:] + done.stdout[-2000:])
    from kernelproof.types import Record

    body = json.loads(done.stdout)
    record = Record.model_validate({k: v for k, v in body.items() if k not in ("status", "checks")})
    assert record.timing is not None
    return {
        "wall_seconds": wall,
        "check_seconds": record.verdict.seconds,
        "build_seconds": record.build.seconds,
        **told(record.timing),
    }


def compare(folder: Path, runs: int) -> dict[str, Any]:
    import torch

    from kernelproof.importing import import_file

    found: dict[str, Any] = {}
    for name, (count, steps) in KERNELS.items():
        problem, candidate = written(folder, name, count, steps)
        record = timed(problem, candidate, baselines=(), seconds=3.0)
        found[name] = {"ours": medians(record.timing.candidate), "notes": record.timing.notes}
        x = torch.randn(count, device=DEVICE)
        model = import_file(candidate, "candidate").ModelNew()

        def call(model: Any = model, x: Any = x) -> Any:
            return model(x)

        found[name]["do_bench"] = triton_times(call)
        found[name]["cuda-bench"] = cuda_bench(folder, candidate, count)
        print(name, json.dumps(found[name]), file=sys.stderr)
    return found


def triton_times(call: Any) -> dict[str, Any]:
    """Seconds by Triton: with L2 flushed, and in a CUDA graph; or why not."""
    try:
        from triton import testing

        return {
            "cold": testing.do_bench(call, return_mode="median") * 1e-3,
            "graph": testing.do_bench_cudagraph(call, return_mode="median") * 1e-3,
        }
    except Exception as error:
        return {"problem": f"{type(error).__name__}: {error}"}


NVBENCH = """
import sys
import torch
import cuda.bench as bench
from pathlib import Path
from kernelproof.importing import import_file

model = import_file(Path(sys.argv[1]), "candidate").ModelNew()
x = torch.randn(int(sys.argv[2]), device="cuda")
model(x)
torch.cuda.synchronize()

def work(state):
    def launch(launched):
        stream = torch.cuda.ExternalStream(launched.get_stream().addressof())
        with torch.cuda.stream(stream):
            model(x)
    state.exec(launch)

bench.register(work)
bench.run_all_benchmarks(["work", "--json", sys.argv[3], "--timeout", "3", "--min-samples", "50"])
"""


def cuda_bench(folder: Path, candidate: Path, count: int) -> dict[str, Any]:
    """Seconds by NVIDIA's cuda-bench: ``cold`` and ``batch``; or why not."""
    script, answer = folder / "nvbench_run.py", folder / "nvbench.json"
    script.write_text(NVBENCH)
    answer.unlink(missing_ok=True)
    words = [sys.executable, str(script), str(candidate), str(count), str(answer)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=15)
    except subprocess.TimeoutExpired:
        return {"problem": "no answer within 15 s"}
    if done.returncode or not answer.exists():
        return {"problem": (done.stderr or done.stdout).strip()[-300:]}
    (state,) = json.loads(answer.read_text())["benchmarks"][0]["states"]
    found: dict[str, Any] = {}
    for summary in state["summaries"]:
        tag = summary["tag"]
        if tag.startswith(("nv/cold/time/gpu", "nv/batch/time/gpu")):
            values = [d["value"] for d in summary["data"] if d["name"] == "value"]
            found[tag.removeprefix("nv/")] = float(values[0]) if values else None
    return found


def answers(folder: Path, runs: int, slowed: bool) -> dict[str, Any]:
    """``runs`` runs of the middle kernel beside itself, or of a slowed one beside it."""
    count, steps = KERNELS["middle"]
    problem, plain = written(folder, "middle", count, steps)
    _, slow = written(folder, "slowed", count, SLOWED)
    rows: list[dict[str, Any]] = []
    began = time.perf_counter()
    for number in range(runs):
        if time.perf_counter() - began > 0.9 * PARTS["same"]:
            break
        mine = slow if slowed else plain
        started = time.perf_counter()
        record = timed(problem, mine, baselines=(), vs=(str(plain),), seconds=4.0)
        timing = record.timing
        (other,) = timing.baselines
        row = {
            "answers": {r.clock: [r.answer, r.ratio, r.low, r.high] for r in timing.ratios},
            "mine": medians(timing.candidate),
            "other": medians(other),
            "rounds": max(timing.candidate.host.rounds) + 1,
            "seconds": time.perf_counter() - started,
            "at": time.time(),
            "notes": list(timing.notes),
        }
        rows.append(row)
        save(folder, {"rows": rows})
        print(number, json.dumps(row["answers"]), row["rounds"], file=sys.stderr)
    return {"rows": rows}


def same(folder: Path, runs: int) -> dict[str, Any]:
    return answers(folder, runs, slowed=False)


def slower(folder: Path, runs: int) -> dict[str, Any]:
    return answers(folder, runs, slowed=True)


def save(folder: Path, value: dict[str, Any]) -> None:
    """What there is so far: a part that is killed has not been in vain."""
    (folder / "part.json").write_text(json.dumps(value, indent=1))


def run_part(name: str, out: Path, runs: int) -> dict[str, Any]:
    """One part in a process group of its own; what it found, or how it ended."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="timing-") as folder:
        words = [sys.executable, __file__, "--out", folder, "--runs", str(runs), "--inside", name]
        words += ["--device", DEVICE]
        log = out / f"{name}.log"
        with log.open("w") as stderr:
            process = subprocess.Popen(words, stderr=stderr, stdout=stderr, start_new_session=True)
            try:
                process.wait(PARTS[name])
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        answer = Path(folder) / "part.json"
        found = json.loads(answer.read_text()) if answer.exists() else {}
    found["exit"] = process.returncode
    found["part_seconds"] = time.perf_counter() - started
    (out / f"{name}.json").write_text(json.dumps(found, indent=1))
    return found


def summary(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    short: dict[str, Any] = {}
    for name, part in found.items():
        short[name] = {"exit": part["exit"], "seconds": round(part["part_seconds"], 1)}
        rows = part.get("rows", [])
        for clock in ("device", "cold", "single", "host") if rows else ():
            got = [row["answers"][clock][0] for row in rows if clock in row["answers"]]
            short[name][clock] = {a: got.count(a) for a in dict.fromkeys(got)}
        if rows:
            short[name]["rounds"] = statistics.median(row["rounds"] for row in rows)
            short[name]["seconds a run"] = statistics.median(row["seconds"] for row in rows)
    both = found.get("same", {}).get("rows", []), found.get("slower", {}).get("rows", [])
    if all(both):
        first, last = both[0][0], both[1][-1]
        # The candidate of the one is the other of the other: the same kernel.
        short["repeatability"] = {
            "seconds apart": last["at"] - first["at"],
            **{c: last["other"][c] / first["mine"][c] for c in first["mine"]},
        }
    if "wall_seconds" in found.get("bench", {}):
        short["bench"]["wall_seconds"] = found["bench"]["wall_seconds"]
    return short


def main() -> int:
    global DEVICE, WORD
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cuda", help="cpu to try the script itself")
    parser.add_argument("--inside", choices=PARTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    DEVICE, WORD = given.device, "cuda" if given.device != "cpu" else "cpu"
    given.out.mkdir(parents=True, exist_ok=True)
    if given.inside:
        save(given.out, globals()[given.inside](given.out, given.runs))
        return 0
    found = {}
    for name in given.part or PARTS:
        found[name] = run_part(name, given.out, given.runs)
        print(name, json.dumps(summary({name: found[name]})), flush=True)
    from kernelproof import environment

    whole = {"environment": environment.capture().model_dump(), "summary": summary(found)}
    (given.out / "timing.json").write_text(json.dumps(whole | found, indent=1))
    print(json.dumps(whole["summary"], indent=1))
    return 0 if all(part["exit"] == 0 for part in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
