"""What was measured of the timing itself, and which tests passed on a GPU, in tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelproof.report.units import seconds

ROOT = Path(__file__).resolve().parents[1]


def newest(name: str) -> dict[str, Any]:
    """The newest file of that name in results/h200."""
    return json.loads(sorted((ROOT / "results" / "h200").glob(f"*-{name}.json"))[-1].read_text())


def answers() -> str:
    """Simulated runs of the timing, from benchmarks/timing_answers.py."""
    lines = [
        "| ratio | noise of a round | rounds | interval holds the ratio | answers |",
        "|---|---|---|---|---|",
    ]
    for row in json.loads((ROOT / "results" / "timing-answers.json").read_text()):
        noise = f"{row['noise']:.1%}"
        noise += f", correlation {row['correlation']:g}" if row["correlation"] else ""
        noise += f", {row['outliers']:.0%} outliers" if row["outliers"] else ""
        answers = ", ".join(f"{word} {share:.1%}" for word, share in row["answers"].items())
        counts = f"{row['rounds']:.0f} | {row['covered']:.1%}"
        lines.append(f"| {row['true']:g} | {noise} | {counts} | {answers} |")
    return "\n".join(lines) + "\n"


def itself() -> str:
    """A kernel beside itself and beside one that does 2 % less, on an H200."""
    found = newest("timing")
    lines = ["| clock | beside itself | 2 % slower |", "|---|---|---|"]
    for clock in ("device", "cold", "host"):
        cells = [
            ", ".join(f"{n} {answer}" for answer, n in found["summary"][part][clock].items())
            for part in ("same", "slower")
        ]
        lines.append(f"| {clock} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def compared() -> str:
    """Our clocks beside those of others, in microseconds."""
    lines = ["| kernel | device | `do_bench_cudagraph` | cold | `do_bench` | cuda-bench, cold |"]
    lines.append("|---|---|---|---|---|---|")
    for name, one in newest("timing")["compare"].items():
        times = (
            one["ours"]["device"], one["do_bench"]["graph"], one["ours"]["cold"],
            one["do_bench"]["cold"], one["cuda-bench"]["cold/time/gpu/median"],
        )  # fmt: skip
        lines.append(f"| {name} | {' | '.join(f'{t * 1e6:.2f}' for t in times)} |")
    return "\n".join(lines) + "\n"


# Stage of a timeline -> heading; see benchmarks/bench_time.py.
_STAGES = {"import torch": "import of torch", "check": "check", "time": "timing"}


def bench_time() -> str:
    """`kernelproof bench` of the founding problems, from benchmarks/bench_time.py."""
    found = newest("bench-time")
    heads = ["problem", "whole command", "after build", *_STAGES.values(), "load before"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    seen: set[str] = set()
    for part in (found, *found.get("later", ())):
        # The first runs of a command fill its caches.
        for row in {run["problem"]: run for run in part["runs"]}.values():
            taken = {s["stage"]: s["seconds"] for s in row["stages"] if not s["beside"]}
            cells = [row["wall"], row["after build"], *(taken.get(name, 0.0) for name in _STAGES)]
            name = row["problem"] + (", again" if row["problem"] in seen else "")
            seen.add(row["problem"])
            cells = [f"{x:.1f} s" for x in cells]
            load = row["load before"]
            cells.append("-" if load is None else f"{load:.1f}")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    without = [f"{x:.1f}" for x in sorted(found["import of torch without bytecode"])]
    lines += ["", f"Without bytecode importing torch took {' and '.join(without)} s."]
    return "\n".join(lines) + "\n"


def kept_in_l2() -> str:
    """Cold times beside a candidate that keeps its input in L2, from benchmarks/kept_in_l2.py."""
    lines = ["| input | persisting lines reset | not reset |", "|---|---|---|"]
    for name, times in newest("kept-in-l2")["seconds"].items():
        lines.append(f"| {name} | {seconds(times['reset'])} | {seconds(times['not reset'])} |")
    return "\n".join(lines) + "\n"


def gpu_tests() -> str:
    """Tests of trust and faults on a GPU, by name, from benchmarks/gpu_tests.py."""
    found = newest("trust")
    lines = ["| test | candidate | outcome | seconds |", "|---|---|---|---|"]
    for name, row in found["tests"].items():
        test, _, candidate = name.split("::")[-1].partition("[")
        words = [f"`{test}`", f"`{candidate.rstrip(']')}`" if candidate else "", row["outcome"]]
        taken = f"{row['seconds']:.1f}" if row.get("seconds") else "-"
        lines.append(f"| {' | '.join(words)} | {taken} |")
    return "\n".join(lines) + "\n"


def worker_cost() -> str:
    """What judging in a worker costs, from benchmarks/worker_cost.py."""
    found = json.loads((ROOT / "results" / "worker-cost.json").read_text())
    lines = ["| check of | one process | warm worker | new worker |", "|---|---|---|---|"]
    start = found["seconds"].pop("cold start")
    for name, one in found["seconds"].items():
        cells = [f"{one['in process']:.2f} s"]
        for way in ("warm worker", "new worker"):
            cells.append(f"{one[way]:.2f} s ({one[f'{way} / in process']:.2f}x)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    machine = found["environment"]
    alone = start.get("import torch, no end")
    text = (
        f"On {machine['cores']} cores ({machine['cpu']}), medians of {found['rounds']} rounds; in "
    )
    text += "brackets the median of the ratios to one process within a round. "
    text += "From a cold start a verdict is told and the command has ended after "
    text += f"{start['first verdict']:.2f} s; a process that only imports torch takes "
    text += f"{start['import torch']:.2f} s"
    if alone is not None:
        text += f", {alone:.2f} s without the end of the interpreter, which the command leaves out"
    lines += ["", f"{text}."]
    return "\n".join(lines) + "\n"
