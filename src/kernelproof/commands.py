"""The commands that judge no candidate: the machine, a problem's data, kernels looked at or
emulated, and new files. `cli` makes them part of the command line."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from kernelproof import outfile
from kernelproof.arguments import (
    BytesOpt,
    CaseOpt,
    CompilerOpt,
    GpuOpt,
    InspectedArg,
    JsonOpt,
    KernelOpt,
    LaunchOpt,
    NcuOpt,
    OneCaseOpt,
    PlaceOpt,
    ProblemArg,
    ProblemOpt,
    RecordOpt,
    SanitizeOpt,
    SeedOpt,
    ShrinkOpt,
    SizeOpt,
    TrainingOpt,
)
from kernelproof.errors import UsageError
from kernelproof.progress import Shown

if TYPE_CHECKING:
    from kernelproof.types import Level, Record

# Columns of a table that goes into a file or to a program.
_NO_TERMINAL = 160


def floors(
    device: PlaceOpt = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure again.")] = False,
    json_: JsonOpt = False,
) -> None:
    """Show what this device can do at most: launch, bandwidth, arithmetic. Measured once."""
    from kernelproof import floors as limits
    from kernelproof.report.speed import floors_text

    with Shown() as progress:
        found = limits.get(device or limits.default_device(), progress, refresh)
    print(floors_text(found)) if not json_ else print_json(json.loads(found.model_dump_json()))


def inspect(
    candidate: InspectedArg,
    gpu: GpuOpt = None,
    problem: ProblemOpt = None,
    case: OneCaseOpt = None,
    launch: LaunchOpt = None,
    kernel: KernelOpt = None,
    compiler: CompilerOpt = "",
    record: RecordOpt = None,
    sanitize: SanitizeOpt = False,
    ncu: NcuOpt = False,
    json_: JsonOpt = False,
) -> None:
    """Say what a candidate's kernels take (registers, spills, shared memory, occupancy,
    instructions) and what holds them back. Needs no GPU; with one, also times its kernels."""
    from kernelproof.inspecting import Wish, told

    wish = Wish(gpu, problem, case, tuple(launch or ()), tuple(kernel or ()), compiler, record,
                sanitize, ncu)  # fmt: skip
    (print_json_text if json_ else print)(told(candidate, wish, json_))


def lint(
    problem: ProblemArg,
    json_: JsonOpt = False,
    seed: SeedOpt = None,
    case: CaseOpt = None,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    training: TrainingOpt = False,
) -> None:
    """Say which trivial cheats a problem's own inputs would let through, and how to mend them."""
    from kernelproof.lint import examine, render
    from kernelproof.problem import load

    loaded = load(problem, dict(sizes_of(size)), shrink, training)
    with Shown() as progress:
        found = examine(loaded, cases=case or (), seed=seed, max_bytes=max_bytes, progress=progress)
    print(render(found)) if not json_ else print_json(json.loads(found.model_dump_json()))
    raise typer.Exit(0 if found.clean else 1)


def race(
    file: Annotated[Path, typer.Argument(help="A .cu or .ptx file.")],
    launch: Annotated[
        list[str] | None,
        typer.Option(
            help="KERNEL<<<GRID, BLOCK>>>(ARGUMENTS), repeatable. Default: the file's comments "
            "`// launch: ...` (see docs/emulate.md)."
        ),
    ] = None,
    traffic: Annotated[
        bool, typer.Option("--traffic", help="Also note bank conflicts and uncoalesced access.")
    ] = False,
    seed: SeedOpt = None,
    json_: JsonOpt = False,
) -> None:
    """Emulate kernels on the CPU and report races, accesses out of bounds and uninitialised
    reads, with their lines. Needs no GPU."""
    from kernelproof.emulate import commands

    results = commands.race(file, launch or (), seed, traffic)
    if json_:
        print_json(commands.as_json(file, results))
    else:
        print(commands.text(file, results))
    raise typer.Exit(1 if any(r.errors for r in results) else 0)


def doctor(json_: JsonOpt = False) -> None:
    """Say what this machine has, what is missing, and how to get it."""
    from kernelproof.doctor import examine, render

    facts = examine()
    if json_:
        print_json({"facts": [fact.model_dump() for fact in facts]})
    else:
        print(render(facts))


def new_op(
    name: Annotated[str, typer.Argument(help="Name of the operator, a Python name.")],
) -> None:
    """Start a new operator: copy the template into ops/NAME."""
    from kernelproof.scaffold import new_op as create

    print(create(name))


def new_problem(name: Annotated[str, typer.Argument(help="Name of the problem.")]) -> None:
    """Start a new problem: write NAME.py into the current folder."""
    from kernelproof.scaffold import new_problem as create

    print(create(name))


def level_of(quick: bool, thorough: bool) -> Level:
    if quick and thorough:
        raise UsageError("--quick and --thorough exclude each other")
    return "quick" if quick else "thorough" if thorough else "default"


def sizes_of(given: Sequence[str] | None) -> tuple[tuple[str, int], ...]:
    pairs = []
    for text in given or ():
        name, _, value = text.partition("=")
        if not name.isidentifier() or not value.isdigit():
            raise UsageError(f"--size {text!r} is not NAME=VALUE with a whole number")
        pairs.append((name, int(value)))
    return tuple(pairs)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1)


_json_to: TextIO | None = None


@contextlib.contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """Inside, stdout is for `print_json` alone if that is ``wanted``; what else is printed, such as
    by a problem's own code, goes to stderr."""
    global _json_to
    if not wanted:
        yield
        return
    before, _json_to = _json_to, sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _json_to = before


def summary(records: Sequence[Record]) -> str:
    """One row a record, as wide as the terminal; a file or a program is given names in full."""
    from kernelproof import report
    from kernelproof.report import units

    columns = shutil.get_terminal_size((_NO_TERMINAL, 24)).columns
    return report.summary(records, max(columns, units.WIDTH))


def print_json(value: Any) -> None:
    print_json_text(as_json(value))


def print_json_text(text: str) -> None:
    print(text, file=_json_to)


def ladder_page(results: Path, output: Path, json_: bool) -> None:
    """The page of a ladder, from what benchmarks/ladder.py wrote."""
    from kernelproof import ladder
    from kernelproof.report import ladder_page as pages

    found = ladder.read_results(results)
    learnt = {problem: ladder.learnt(problem) for problem in found.problems}
    outfile.write(output, pages.render(found, learnt))
    if json_:
        print_json({"report": str(output)})
        return
    for problem in found.problems:
        rows = found.of(problem)
        passing = sum(row.status == "pass" for row in rows)
        timed = sum(row.device is not None for row in rows)
        print(f"{problem}  {len(rows)} designs, {passing} pass, {timed} timed")
    print(f"\nreport: {output}")


def session_page(session: str, output: Path, json_: bool, store: str | None) -> None:
    """The page of a session: its ladder, then the records of its attempts, the newest first."""
    from kernelproof import session as sessions
    from kernelproof import session_folder
    from kernelproof.report import session_page as pages
    from kernelproof.report import sessions as words
    from kernelproof.store import Store

    session, store = session_folder.resolved(session, store)
    found = sessions.log(session, store=store)
    kept = Store(store)
    records = [kept.get(one.record_id) for one in reversed(found.attempts) if one.record_id]
    outfile.write(output, pages.render(found, records))
    if json_:
        print_json({"report": str(output)})
        return
    print(words.state_line(found.session))
    print(f"\nreport: {output}")
