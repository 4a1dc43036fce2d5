"""One judgement per size: ``bench --sweep S=64:65536:x2``.

The first size gets the check that was asked for, on all cases; the others a quick one, of the case
that is timed. Every size is checked before it is timed.
"""

from __future__ import annotations

import dataclasses
import inspect
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kernelproof.errors import UsageError
from kernelproof.types import Progress, Record, SweepPoint, silent

if TYPE_CHECKING:
    from kernelproof.options import Options
    from kernelproof.problem import Reference

_FORM = "NAME=FROM:TO:xFACTOR or NAME=FROM:TO:+STEP, such as S=64:65536:x2"
_MOST = 64


@dataclasses.dataclass(frozen=True)
class Sweep:
    """``name`` and the values that it takes in turn."""

    name: str
    values: tuple[int, ...]


def parse(text: str) -> Sweep:
    """A sweep from its text. Raises UsageError that says what is wrong with it."""

    def bad(why: str) -> UsageError:
        return UsageError(f"--sweep {text!r}: {why}; it has the form {_FORM}")

    name, equals, rest = text.partition("=")
    parts = rest.split(":")
    if not equals or not name.isidentifier():
        raise bad(f"{name!r} is no name")
    if len(parts) != 3 or not all(part.isdigit() for part in parts[:2]):
        raise bad(f"{rest!r} is not two whole numbers and a step")
    first, last, step = int(parts[0]), int(parts[1]), parts[2]
    if step[:1] not in ("x", "+") or not step[1:].isdigit():
        raise bad(f"the step {step!r} is neither x nor + with a whole number")
    amount = int(step[1:])
    if first < 1 or last < first:
        raise bad(f"{first} to {last} is no range upwards from 1")
    if amount < (2 if step[0] == "x" else 1):
        raise bad(f"the step {step!r} does not go on")
    values = [first]
    while (following := values[-1] * amount if step[0] == "x" else values[-1] + amount) <= last:
        values.append(following)
        if len(values) > _MOST:
            raise bad(f"that is more than {_MOST} sizes")
    return Sweep(name, tuple(values))


def with_baselines(options: Options) -> Options:
    """``options`` with eager as the one baseline where none were chosen: compiling the reference
    anew for each size would take most of the time."""
    return (
        options
        if options.baselines is not None
        else dataclasses.replace(options, baselines=("eager",))
    )


def run(
    problem: str,
    candidate: str,
    sweep: Sweep,
    options: Options,
    progress: Progress = silent,
    done: Callable[[Record], None] = lambda record: None,
) -> tuple[list[Record], list[str]]:
    """Judge and time ``candidate`` at every size of ``sweep``; ``done`` gets each record at once.

    Returns the records, and a line for each size at which the reference itself does not run.

    Raises:
        UsageError: the problem has no size of that name, or does not run at the first one.
    """
    from kernelproof import pipeline
    from kernelproof import problem as problems
    from kernelproof.worker.client import start_server

    if options.shrink_to is not None:
        raise UsageError("--sweep and --shrink both choose sizes; give one of them")
    start_server()
    reference = problems.load(problem, dict(options.sizes), options.shrink_to)
    case = pipeline._timed_case(reference, options).name
    constant = _is_constant(reference, sweep.name)
    identity = uuid.uuid4().hex[:12]
    records: list[Record] = []
    skipped: list[str] = []
    for number, value in enumerate(sweep.values):
        changes: dict[str, object] = (
            {"sizes": (*options.sizes, (sweep.name, value))}
            if constant
            else {"case_sizes": (*options.case_sizes, (sweep.name, value))}
        )
        if number:
            changes |= {"level": "quick", "cases": (case,)}

        def step(what: str, at: int, total: int, where: str = f"{sweep.name}={value}") -> None:
            progress(f"{where}: {what}", at, total)

        try:
            record = pipeline.judge(
                problem,
                candidate,
                timed=True,
                options=dataclasses.replace(options, **changes),  # type: ignore[arg-type]
                progress=step,
            )
        except UsageError as error:
            if not records:
                raise
            skipped.append(f"{sweep.name}={value}: {error}")
            continue
        point = SweepPoint(id=identity, name=sweep.name, value=value)
        records.append(record.model_copy(update={"sweep": point}))
        done(records[-1])
    return records, skipped


def _is_constant(reference: Reference, name: str) -> bool:
    """Whether ``name`` is a module-level size; False for a keyword of ``get_inputs``."""
    from kernelproof.resize import size_constants

    source = Path(reference.problem.path).read_text()
    constants = size_constants(source, vars(reference.module))
    numbers = {name for name, size in constants.items() if isinstance(size, int)}
    parameters = inspect.signature(reference.module.get_inputs).parameters.values()
    given = [(p.name, p.default) for p in parameters]
    given += [pair for case in reference.problem.cases for pair in case.sizes.items()]
    keywords = {name for name, value in given if type(value) is int}
    if name in numbers | keywords:
        return name in numbers
    known = ", ".join(sorted(numbers | keywords)) or "none that can be swept"
    raise UsageError(f"--sweep: {reference.problem.name} has no size {name!r}; it has {known}")


def text(records: list[Record], skipped: list[str]) -> str:
    """The table of a sweep, and what was left out."""
    from kernelproof.report import units
    from kernelproof.report.speed import sweep_rows

    first = records[0]
    assert first.sweep is not None
    rows = sweep_rows(records)
    rows[0][0] = units.one_line(first.sweep.name)
    lines = [
        f"{units.one_line(first.candidate.name)} for {units.one_line(first.problem.name)}, "
        f"sweep of {units.one_line(first.sweep.name)}; time per call, median [95 % interval]",
        *units.table(rows, "><<>>><<"),
        "the first size was checked in full, the others quickly (one seed, the timed case)",
        *(f"left out  {units.one_line(line)}" for line in skipped),
    ]
    lines += [
        f"{r.sweep.name}={r.sweep.value}: {r.status}: {units.one_line(r.verdict.message)}"
        for r in records
        if r.status != "pass" and r.sweep is not None
    ]
    return "\n".join(lines)
