"""What the worker process costs: judging with it against judging in one process, and a cold start.

python benchmarks/worker_cost.py [--rounds N] [--out FILE]

In one process means that the same code (`worker.child.Host`) is called directly: no server, no
copy over a socket, no limits. Checks in that way, with a warm worker, and with a new worker of a
warm server are run in turns. Times in seconds of the wall clock: medians, and the median of the
ratios within a round, which a load from outside moves least. One process for each problem: the
audit hook of an in-process candidate stays for as long as its process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernelproof import candidate, openmp, problem
from kernelproof.environment import capture
from kernelproof.pipeline import Options, find_candidate

FOUNDING = ("mla_kv", "int8_attention", "gated_recurrence")
SEEDS = (11, 12, 13, 14, 15)


class InProcess:
    """A candidate in this process, as the check sees it."""

    def __init__(self, found: Any) -> None:
        from kernelproof.worker.child import Host

        self.host = Host()
        self.found = found

    def construct(self, *payload: Any) -> str:
        import torch

        request = {
            "do": "load", "path": self.found.path, "kind": "candidate", "attr": "ModelNew",
            "device": "cpu", "language": self.found.language, "threads": torch.get_num_threads(),
        }  # fmt: skip
        return str(self.host.handle(request, payload)["weights"])

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        request = {"do": "call", "poison": poison, "repeats": repeats}
        return self.host.handle(request, (inputs, seed))


def compared(name: str, rounds: int) -> dict[str, float]:
    """Seconds of a check of a shipped CPU kernel at the default level, both ways."""
    from kernelproof.check import Plan, check
    from kernelproof.subject import CandidateProcess

    reference = problem.load(name)
    found = candidate.load(find_candidate(reference.problem.path, "cpu"))
    plan = Plan(seeds=SEEDS, level="default")
    inside = InProcess(found)

    def checked(subject: Any) -> None:
        assert check(reference, subject, plan).status == "pass"

    def new_worker() -> None:
        with CandidateProcess(found, "cpu", Options()) as subject:
            checked(subject)

    with CandidateProcess(found, "cpu", Options()) as kept:
        ways: list[tuple[str, Callable[[], None]]] = [
            ("in process", lambda: checked(inside)),
            ("warm worker", lambda: checked(kept)),
            ("new worker", new_worker),
        ]
        taken: dict[str, list[float]] = {label: [] for label, _ in ways}
        for _, way in ways:
            way()  # builds, imports and the server
        for number in range(rounds):
            turn = number % len(ways)
            for label, way in ways[turn:] + ways[:turn]:
                started = time.perf_counter()
                way()
                taken[label].append(time.perf_counter() - started)
    figures = {label: statistics.median(times) for label, times in taken.items()}
    for label in ("warm worker", "new worker"):
        ratios = [a / b for a, b in zip(taken[label], taken["in process"], strict=True)]
        figures[f"{label} / in process"] = statistics.median(ratios)
    return figures


def cold(rounds: int) -> dict[str, float]:
    """Seconds of a fresh process that imports torch, with the interpreter's end and without, and of
    one that comes to a first verdict. Modules are in bytecode, as an installer leaves them."""
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "import torch, no end": [sys.executable, "-c", "import torch, os; os._exit(0)"],
        "first verdict": [
            sys.executable, "-m", "kernelproof", "check", "gated_recurrence", "cpu", "--quick",
            "--case", "founding", "--json", "--store", "sqlite://",
        ],
    }  # fmt: skip
    taken: dict[str, list[float]] = {label: [] for label in commands}
    kept = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for number in range(rounds + 1):
        for label, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=kept)
            if number:  # the first fills the caches of builds, files and bytecode
                taken[label].append(time.perf_counter() - started)
    medians = {label: statistics.median(times) for label, times in taken.items()}
    verdict = medians["first verdict"]
    return {
        **medians,
        "more": verdict - medians["import torch"],
        "more than without the end": verdict - medians["import torch, no end"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="a file for the results, as JSON")
    parser.add_argument("--problem", choices=FOUNDING, help=argparse.SUPPRESS)
    given = parser.parse_args()
    openmp.wait_passively()
    if given.problem:
        print(json.dumps(compared(given.problem, given.rounds)))
        return
    found: dict[str, Any] = {"cold start": cold(given.rounds)}
    for name in FOUNDING:
        command = [sys.executable, __file__, "--problem", name, "--rounds", str(given.rounds)]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found[name] = json.loads(out.splitlines()[-1])
    for name, figures in found.items():
        print(f"{name:18}" + ", ".join(f"{label} {x:.3f}" for label, x in figures.items()))
    if given.out:
        about = {
            "date": datetime.date.today().isoformat(), "rounds": given.rounds,
            "environment": capture().model_dump(mode="json"), "seconds": found,
        }  # fmt: skip
        given.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
