"""A suite on one GPU and on two: is it nearly twice as fast, with the same verdicts and times?

    python benchmarks/suite_gpus.py [--count 40] [--output results/h200/suite-two-gpus.json]
    python benchmarks/suite_gpus.py --gpus 0 [--join FILE]

The candidates are fixtures of tests/candidates: right and wrong, in CUDA, Triton and PyTorch. Each
of the two runs begins with a data folder of its own that has the floors of the GPUs and nothing
else, so that both compile all. Nothing else may run on the machine.
Options are the usual ones but for the baselines, of which there is eager alone; ``--quick`` makes
checks and timings short, so that what they begin with weighs more. ``--gpus`` makes one of the two
runs alone; ``--join`` takes the other from an earlier results file, whose environment is kept
beside it. What was judged is in the file should a run be cut off. ``--inline`` judges after it
candidates that take nvcc half a minute: their seconds tell whether the builds ahead were what the
GPU's worker found. ``--rehearse`` does all of it on the CPU, without times.
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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "candidates"
# They would take the suite's time by themselves: hangs, and what nvcc or torch.compile compiles.
SLOW = ("hang", "carry_never_published", "inline", "cuda_stable", "compiled_inside")
INLINE = ("axpby__cuda_inline.py", "groupnorm_silu__cuda_inline_weight_by_group.py")
OPTIONS = {"baselines": ["eager"]}
QUICK = {"level": "quick", "rounds": 25, "seconds": 0.8}


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


def told_options(args: argparse.Namespace) -> dict[str, Any]:
    return {
        **OPTIONS, **(QUICK if args.quick else {}), **({"device": "cpu"} if args.rehearse else {}),
    }  # fmt: skip


def judged(
    folder: Path, gpus: str, args: argparse.Namespace,
    kept: Callable[[float, Any], None] = lambda since, result: None,
) -> float:  # fmt: skip
    """Seconds of the run; its results are given to ``kept`` as they come."""
    from kernelproof.suite import runs

    options = told_options(args)
    means = runs.Means(gpus=None if args.rehearse else gpus, limit=60.0)
    started = time.perf_counter()

    def told(result: Any, done: int, count: int) -> None:
        since = time.perf_counter() - started
        print(f"{since:6.1f} s  [{done}/{count}] {result.item}: {result.status}, {result.place}, "
              f"{result.seconds:.2f} s {result.message[:80]}", flush=True)  # fmt: skip
        kept(since, result)

    runs.start(
        folder / "problems", folder / "candidates", timed=not args.rehearse, options=options,
        means=means, told=told,
    )  # fmt: skip
    return time.perf_counter() - started


def half(folder: Path, gpus: str, args: argparse.Namespace, body: dict[str, Any]) -> None:
    """The run on ``gpus``, into ``body``; written as it goes on."""
    from kernelproof import environment

    own: dict[str, Any] = {
        "created": f"{datetime.datetime.now(datetime.timezone.utc):%F %T}",
        "environment": environment.capture().model_dump(), "count": args.count, "items": {},
    }  # fmt: skip
    if args.commit:
        own["environment"]["commit"] = args.commit
    body["halves"]["one" if gpus == "0" else "two"] = own

    def kept(since: float, result: Any) -> None:
        own["items"][result.item] = {
            "status": result.status, "place": result.place, "seconds": round(result.seconds, 3),
            "time": result.time, "clock": result.ratios[0].clock if result.ratios else "",
            "since": round(since, 2),
        }  # fmt: skip
        write(args.output, body)

    own["seconds"] = judged(folder, gpus, args, kept)
    write(args.output, body)


def reached(half: Mapping[str, Any], count: int) -> float | None:
    """Seconds until ``count`` items of a run were judged; its whole time where that is all."""
    if "seconds" in half and count == len(half["items"]):
        return float(half["seconds"])
    since = sorted(row["since"] for row in half["items"].values() if "since" in row)
    return since[count - 1] if count and len(since) >= count else None


def compared(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """The two halves side by side. ``speedup``: of as many items as both have judged, the first of
    each run, from its start to the last of these; None where a run does not tell when that was."""
    found = []
    for name in sorted(one["items"].keys() & two["items"].keys()):
        a, b = one["items"][name], two["items"][name]
        row = {"item": name, "status": [a["status"], b["status"]],
               "seconds": [a["seconds"], b["seconds"]]}  # fmt: skip
        if a.get("time") and b.get("time"):
            row["median"] = [a["time"][0], b["time"][0]]
            row["change"] = b["time"][0] / a["time"][0] - 1
        found.append(row)
    changes = [abs(row["change"]) for row in found if "change" in row]
    count = min(len(one["items"]), len(two["items"]))
    until = [reached(half, count) for half in (one, two)]
    return {
        "first": count, "until": until,
        "speedup": until[0] / until[1] if until[0] and until[1] else None,
        "compared": len(found),
        "same_verdicts": sum(row["status"][0] == row["status"][1] for row in found),
        "timed": len(changes), "largest_change": max(changes, default=None),
        "within_3_percent": sum(c <= 0.03 for c in changes), "items": found,
    }  # fmt: skip


def write(output: Path, body: dict[str, Any]) -> None:
    halves = body["halves"]
    if len(halves) == 2:
        body.update(compared(halves["one"], halves["two"]))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(body, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--gpus", choices=("0", "0,1"), help="make this one of the two runs alone")
    parser.add_argument("--join", type=Path, help="a results file that has the other run")
    parser.add_argument("--quick", action="store_true", help="short checks and timings")
    parser.add_argument("--commit", help="of the sources, where they are a copy")
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--output", type=Path, default=ROOT / "results/h200/suite-two-gpus.json")
    args = parser.parse_args()
    os.environ.setdefault("KERNELPROOF_HOME", tempfile.mkdtemp())
    from kernelproof.suite import local

    chosen_gpus = [args.gpus] if args.gpus else ["0,1", "0"]
    gpus = local.visible(None, "cpu" if args.rehearse else None)
    needed = max(len(one.split(",")) for one in chosen_gpus)
    if len(gpus) < needed and not args.rehearse:
        raise SystemExit(f"{needed} GPU(s) are needed; there are {len(gpus)}")
    body: dict[str, Any] = {"options": told_options(args), "halves": {}}
    if args.join is not None:
        body["halves"].update(json.loads(args.join.read_text())["halves"])
    folder = Path(tempfile.mkdtemp())
    suite(folder / "warm", chosen(needed))
    suite(folder / "all", chosen(args.count))
    # Floors are measured once.
    judged(folder / "warm", max(chosen_gpus, key=len), args)
    home = Path(os.environ["KERNELPROOF_HOME"])
    for one in chosen_gpus:
        place = folder / f"home {one}"
        shutil.copytree(home, place, ignore=shutil.ignore_patterns("builds", "*.sqlite*"))
        os.environ["KERNELPROOF_HOME"] = str(place)
        half(folder / "all", one, args, body)
    if "speedup" in body:
        same = f"{body['same_verdicts']} of {body['compared']} verdicts the same"
        near = f"of {body['timed']} medians {body['within_3_percent']} within 3 %"
        print(f"{body['speedup']} times as fast; {same}; {near}")
    if args.inline:
        found: dict[str, Any] = {}
        suite(folder / "inline", [*(FIXTURES / "gpu" / name for name in INLINE), *chosen(2)])
        seconds = judged(
            folder / "inline", "0", args,
            lambda _, r: found.update({r.item: {"status": r.status, "seconds": r.seconds}}),
        )  # fmt: skip
        body["inline"] = {"seconds": seconds, "items": found}
        write(args.output, body)


if __name__ == "__main__":
    main()
