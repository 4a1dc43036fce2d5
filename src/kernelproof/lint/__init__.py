"""Sensitivity of a problem: would its own data let a cheat through? See docs/cli.md.

A leaf beside `pipeline`: it takes a problem, tries on it what a lazy or broken kernel could return,
and says which of that the proof and the compat tolerance accept. No candidate is involved, so all
of it runs in this process.
"""

from __future__ import annotations

import dataclasses
import math
import random
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelproof.errors import ProblemError, no_case
from kernelproof.lint.result import Cheat, Finding, Kind, Report
from kernelproof.lint.text import render
from kernelproof.types import Case, Progress, silent

if TYPE_CHECKING:
    from kernelproof.lint.cheats import Attempt
    from kernelproof.lint.scene import Scene
    from kernelproof.problem import Reference

__all__ = ["Cheat", "Finding", "Report", "examine", "render"]

# The first case is judged under this many seeds, the others under one.
_SEEDS = 2
# A case with more elements than this is tried only with cheats that no smaller case tells apart:
# it would cost minutes to see them fail once more.
_LARGE = 100_000


def examine(
    reference: Reference,
    *,
    cases: Sequence[str] = (),
    seed: int | None = None,
    max_bytes: int | None = None,
    progress: Progress = silent,
) -> Report:
    """Try every cheat on every case of a problem.

    Args:
        cases: names, all when empty.
        seed: replays the seeds of another run; None draws them secretly.
        max_bytes: cases with larger inputs are left out, and the report says so.

    Raises:
        ProblemError: the reference does not run, there is no such case, or none was small enough.
    """
    from kernelproof.check import budget
    from kernelproof.lint.cheats import attempts
    from kernelproof.lint.facts import Facts
    from kernelproof.lint.findings import findings
    from kernelproof.lint.scene import Stage
    from kernelproof.resize import tensor_bytes

    chosen = _chosen(reference, cases)
    draw = random.Random(secrets.randbits(48) if seed is None else seed)
    seeds = tuple(draw.getrandbits(31) for _ in range(_SEEDS + 1))
    stage, facts, tallies = Stage(reference), Facts(), _Tallies()
    bytes_of = {case.name: tensor_bytes(stage.inputs(case, seeds[0])) for case in chosen}
    fit = [c for c in chosen if max_bytes is None or bytes_of[c.name] <= max_bytes]
    skipped = tuple(
        f"{case.name}: inputs of {bytes_of[case.name]} bytes exceed the limit of {max_bytes}"
        for case in chosen
        if case not in fit
    )
    if not fit:
        name = reference.problem.name
        raise ProblemError(f"no case of {name} could be run: {'; '.join(skipped)}")
    first: Scene | None = None
    # The first case leads, then the small ones: see _LARGE.
    ordered = fit[:1] + sorted(fit[1:], key=lambda case: bytes_of[case.name])
    for number, case in enumerate(ordered):
        progress(f"lint {case.name}", number, len(ordered))
        for index in range(_SEEDS if first is None else 1):
            scene = stage.scene(case, seeds[index], seeds[index + 1])
            facts.add(scene)
            large = first is not None and scene.elements > _LARGE
            for attempt in attempts(scene, first, tallies.open if large else _all):
                tallies.add(scene, attempt)
        first = first or scene
    cheats = tallies.cheats()
    return Report(
        problem=reference.problem.name,
        path=reference.problem.path,
        cases=tuple(case.name for case in fit),
        seeds=seeds,
        limit=budget.LIMIT,
        findings=findings(facts, cheats, fit[0].name),
        cheats=cheats,
        skipped=skipped,
    )


def _chosen(reference: Reference, names: Sequence[str]) -> list[Case]:
    """The cases of these names, all when there are none; raises ProblemError for an unknown one."""
    problem = reference.problem
    unknown = set(names) - {case.name for case in problem.cases}
    if unknown:
        known = [case.name for case in problem.cases]
        raise ProblemError(f"{problem.name} {no_case(min(unknown), known)}")
    return [case for case in problem.cases if not names or case.name in names]


@dataclasses.dataclass
class _Tally:
    """A cheat so far: case -> whether each verdict passed it under every seed."""

    kind: Kind
    proof: dict[str, bool] = dataclasses.field(default_factory=dict)
    compat: dict[str, bool] = dataclasses.field(default_factory=dict)
    identical: dict[str, bool] = dataclasses.field(default_factory=dict)
    ratio: float = 0.0


def _all(name: str, subject: str) -> bool:
    return True


class _Tallies:
    def __init__(self) -> None:
        self.found: dict[tuple[str, str], _Tally] = {}

    def open(self, name: str, subject: str) -> bool:
        """Whether a cheat has not been told apart yet."""
        tally = self.found.get((name, subject))
        return tally is None or all(tally.proof.values()) or all(tally.compat.values())

    def add(self, scene: Scene, attempt: Attempt) -> None:
        from kernelproof.lint.cheats import identical

        key = (attempt.name, attempt.subject)
        tally = self.found.setdefault(key, _Tally(attempt.kind))
        verdicts = [scene.judge(i, got) for i, got in attempt.got.items()]
        same = all(identical(got, scene.outputs[i][1]) for i, got in attempt.got.items())
        case = scene.case.name
        for held, value in (
            (tally.proof, all(v.passed for v in verdicts)),
            (tally.compat, all(v.compat for v in verdicts)),
            (tally.identical, same),
        ):
            held[case] = held.get(case, True) and value
        for verdict in verdicts:
            ratio = max(verdict.ratio_rows, verdict.ratio_all)
            # A failure without a ratio (integers, NaN where there was none) is as clear as can be.
            clear = not verdict.passed and (verdict.figures is None or math.isnan(ratio))
            stray = not verdict.passed and ratio <= scene.limit
            tally.ratio = max(tally.ratio, math.inf if clear or stray else ratio)

    def cheats(self) -> tuple[Cheat, ...]:
        """Those that pass most first."""

        def where(held: dict[str, bool]) -> tuple[str, ...]:
            return tuple(case for case, value in held.items() if value)

        made = [
            Cheat(
                name=name,
                kind=tally.kind,
                subject=subject,
                cases=tuple(tally.proof),
                proof=where(tally.proof),
                compat=where(tally.compat),
                identical=where(tally.identical),
                ratio=tally.ratio,
            )
            for (name, subject), tally in self.found.items()
        ]
        share = [(len(c.proof) / len(c.cases), len(c.compat) / len(c.cases)) for c in made]
        order = sorted(range(len(made)), key=lambda i: share[i], reverse=True)
        return tuple(made[i] for i in order)
