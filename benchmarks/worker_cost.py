"""What the worker process costs: judging with it against judging in one process, and a cold start.

python benchmarks/worker_cost.py [--rounds N] [--json]

In one process means that the same code (`worker.child.Host`) is called directly: no server, no
copy over a socket, no limits. Both are run in turns; the server is warm, each round takes a new
worker. Times in seconds, medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from kernelproof import candidate, openmp, problem
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

    def direct() -> None:
        assert check(reference, InProcess(found), plan).status == "pass"

    def worker() -> None:
        with CandidateProcess(found, "cpu", Options()) as subject:
            assert check(reference, subject, plan).status == "pass"

    taken: dict[str, list[float]] = {"direct": [], "worker": []}
    ways: list[tuple[str, Callable[[], None]]] = [("direct", direct), ("worker", worker)]
    for _, way in ways:
        way()  # builds, imports and the server
    for number in range(rounds):
        for label, way in ways if number % 2 else reversed(ways):
            started = time.perf_counter()
            way()
            taken[label].append(time.perf_counter() - started)
    medians = {label: statistics.median(times) for label, times in taken.items()}
    return {**medians, "ratio": medians["worker"] / medians["direct"]}


def cold(rounds: int) -> dict[str, float]:
    """Seconds of importing torch in a fresh process, and of a first verdict in one."""
    commands = {
        "import torch": [sys.executable, "-c", "import torch"],
        "first verdict": [
            sys.executable, "-m", "kernelproof", "check", "gated_recurrence", "cpu", "--quick",
            "--case", "founding", "--json", "--store", "sqlite://",
        ],
    }  # fmt: skip
    taken: dict[str, list[float]] = {label: [] for label in commands}
    for number in range(rounds + 1):
        for label, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            if number:  # the first fills the caches of builds and files
                taken[label].append(time.perf_counter() - started)
    medians = {label: statistics.median(times) for label, times in taken.items()}
    return {**medians, "more": medians["first verdict"] - medians["import torch"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    openmp.wait_passively()
    found = {"cold start": cold(given.rounds)}
    found |= {name: compared(name, given.rounds) for name in FOUNDING}
    if given.json:
        print(json.dumps(found, indent=1))
        return
    for name, figures in found.items():
        print(f"{name:18}" + ", ".join(f"{label} {x:.2f}" for label, x in figures.items()))


if __name__ == "__main__":
    main()
