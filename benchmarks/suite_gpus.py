"""A suite on one GPU and on two: is it nearly twice as fast, with the same verdicts and times?

    python benchmarks/suite_gpus.py [--count 40] [--output results/h200/suite-two-gpus.json]

The candidates are fixtures of tests/candidates: right and wrong, in CUDA, Triton and PyTorch. Each
of the two runs begins with a data folder of its own that has the floors of the GPUs and nothing
else, so that both compile all. Nothing else may run on the machine.
``--inline`` judges after it candidates that take nvcc half a minute: their seconds tell whether
the builds ahead were what the GPU's worker found. ``--rehearse`` does all of it on the CPU, without
times.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "candidates"
# They would take the suite's time by themselves: hangs, and what nvcc compiles.
SLOW = ("hang", "carry_never_published", "inline", "cuda_stable")
INLINE = ("axpby__cuda_inline.py", "groupnorm_silu__cuda_inline_weight_by_group.py")
OPTIONS = {"level": "quick", "baselines": ["eager"], "rounds": 25, "seconds": 0.8}


def chosen(count: int) -> list[Path]:
    """Fixtures on problems of the folder `problems`, in turn those for a GPU and those that run
    anywhere."""
    pairs = itertools.zip_longest(_fixtures("gpu"), _fixtures("right"))
    return [path for pair in pairs for path in pair if path is not None][:count]


def _fixtures(kind: str) -> list[Path]:
    problems = {p.stem for p in (ROOT / "problems").glob("*.py")}
    return [
        path
        for path in sorted((FIXTURES / kind).glob("*.py"))
        if path.name.split("__")[0] in problems
        and not any(word in path.name for word in SLOW)
        and not any(word in path.read_text() for word in ("c_library", "load_inline"))
    ]


def suite(folder: Path, candidates: list[Path]) -> tuple[Path, Path]:
    problems, place = folder / "problems", folder / "candidates"
    problems.mkdir(parents=True)
    place.mkdir()
    for path in candidates:
        problem = f"{path.name.split('__')[0]}.py"
        shutil.copy(ROOT / "problems" / problem, problems / problem)
        shutil.copy(path, place / path.name)
    return problems, place


def judged(
    folder: Path, gpus: str, args: argparse.Namespace,
    kept: Callable[[float, Any], None] = lambda since, result: None,
) -> tuple[float, dict[str, Any]]:  # fmt: skip
    """Seconds of the run, and its results by item; each is given to ``kept`` as it comes."""
    from kernelproof.suite import runs

    options = {**OPTIONS, "device": "cpu"} if args.rehearse else OPTIONS
    means = runs.Means(gpus=None if args.rehearse else gpus, limit=60.0)
    started = time.perf_counter()

    def told(result: Any, done: int, count: int) -> None:
        since = time.perf_counter() - started
        print(f"{since:6.1f} s  [{done}/{count}] {result.item}: {result.status}, {result.place}, "
              f"{result.seconds:.2f} s {result.message[:80]}", flush=True)  # fmt: skip
        kept(since, result)

    state = runs.start(
        folder / "problems", folder / "candidates", timed=not args.rehearse, options=options,
        means=means, told=told,
    )  # fmt: skip
    return time.perf_counter() - started, {r.item: r for r in state.results}


def rows(two: dict[str, Any], one: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name in sorted(one):
        a, b = one[name], two[name]
        row = {"item": name, "status": [a.status, b.status], "place": [a.place, b.place],
               "seconds": [round(r.seconds, 3) for r in (a, b)]}  # fmt: skip
        if a.time is not None and b.time is not None:
            row["median"] = [a.time[0], b.time[0]]
            row["change"] = b.time[0] / a.time[0] - 1
            row["clock"] = a.ratios[0].clock
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "results/h200/suite-two-gpus.json")
    args = parser.parse_args()
    os.environ.setdefault("KERNELPROOF_HOME", tempfile.mkdtemp())
    from kernelproof import environment
    from kernelproof.suite import local

    gpus = local.visible(None, "cpu" if args.rehearse else None)
    if len(gpus) < 2 and not args.rehearse:
        raise SystemExit(f"two GPUs are needed; there are {len(gpus)}")
    folder = Path(tempfile.mkdtemp())
    candidates = chosen(args.count)
    suite(folder / "warm", chosen(2))
    suite(folder / "all", candidates)
    body: dict[str, Any] = {"created": f"{datetime.datetime.now(datetime.timezone.utc):%F %T}"}

    def write() -> None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(body, indent=1) + "\n")

    # Floors are measured once.
    judged(folder / "warm", "0,1", args)
    home = Path(os.environ["KERNELPROOF_HOME"])
    for name in ("two", "one"):
        shutil.copytree(home, folder / name, ignore=shutil.ignore_patterns("builds", "*.sqlite*"))
    os.environ["KERNELPROOF_HOME"] = str(folder / "two")
    both, two = judged(folder / "all", "0,1", args)
    body["two_gpus_seconds"] = both
    body["two_gpus"] = {r.item: [r.status, r.place, r.seconds, r.time] for r in two.values()}
    write()
    os.environ["KERNELPROOF_HOME"] = str(folder / "one")

    def so_far(since: float, result: Any) -> None:
        """What there is should the run be cut off."""
        told = body.setdefault("one_gpu", {})
        told[result.item] = [result.status, result.place, result.seconds, result.time, since]
        write()

    alone, one = judged(folder / "all", "0", args, so_far)
    del body["two_gpus"], body["one_gpu"]
    found = rows(two, one)
    changes = [abs(row["change"]) for row in found if "change" in row]
    body |= {
        "environment": environment.capture().model_dump(), "options": OPTIONS,
        "candidates": len(found), "one_gpu_seconds": alone, "speedup": alone / both,
        "same_verdicts": sum(row["status"][0] == row["status"][1] for row in found),
        "timed": len(changes), "largest_change": max(changes, default=None),
        "within_3_percent": sum(c <= 0.03 for c in changes), "items": found,
    }  # fmt: skip
    write()
    print(f"one GPU {alone:.1f} s, two {both:.1f} s: {alone / both:.2f}x; "
          f"{body['same_verdicts']} of {len(found)} verdicts the same; of {len(changes)} medians "
          f"{body['within_3_percent']} within 3 %")  # fmt: skip
    if args.inline:
        suite(folder / "inline", [*(FIXTURES / "gpu" / name for name in INLINE), *chosen(2)])
        seconds, found = judged(folder / "inline", "0", args)
        body["inline"] = {"seconds": seconds, "items": {
            name: {"status": r.status, "seconds": r.seconds} for name, r in found.items()
        }}  # fmt: skip
        write()


if __name__ == "__main__":
    main()
