"""The command line: thin faces over the same functions as the Python interface.

Exit codes: 0 the candidate passed, 1 it did not, 2 usage or an unreadable problem, 3 a fault of
kernelproof itself. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kernelproof import (
    __version__,
    commands,
    failures,
    mcp_command,
    openmp,
    outfile,
    proof_commands,
    serve_command,
    session_commands,
    store_commands,
    timeline,
)
from kernelproof.arguments import (
    BaselineOpt,
    BytesOpt,
    CandidateArg,
    CaseOpt,
    DeviceOpt,
    JsonOpt,
    LargeOpt,
    NcuOpt,
    ProblemArg,
    QuickOpt,
    RoundsOpt,
    SanitizeOpt,
    SecondsOpt,
    SeedOpt,
    SeedsOpt,
    ShrinkOpt,
    SizeOpt,
    StoreOpt,
    SweepOpt,
    ThoroughOpt,
    TimeoutOpt,
    TrainingOpt,
    VsOpt,
)
from kernelproof.commands import level_of, print_json, sizes_of
from kernelproof.errors import KernelproofError, UsageError
from kernelproof.importing import uncollected
from kernelproof.progress import Shown
from kernelproof.suite import commands as suite_commands
from kernelproof.suite.verdict_commands import app as suite_app

if TYPE_CHECKING:
    from kernelproof.options import Options
    from kernelproof.types import Record

_INTERRUPTED = 130

app = typer.Typer(
    name="kernelproof",
    help="The proving ground for custom PyTorch kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def check(
    problem: ProblemArg,
    candidate: CandidateArg,
    json_: JsonOpt = False,
    device: DeviceOpt = None,
    seeds: SeedsOpt = 5,
    seed: SeedOpt = None,
    case: CaseOpt = None,
    quick: QuickOpt = False,
    thorough: ThoroughOpt = False,
    large: LargeOpt = False,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    training: TrainingOpt = False,
    timeout: TimeoutOpt = 60.0,
    repro: Annotated[
        Path | None,
        typer.Option(help="Where it fails, write a script in plain PyTorch that shows it."),
    ] = None,
    store: StoreOpt = None,
) -> None:
    """Build a candidate and check that it computes the same function. Of a folder of candidates,
    each is checked, and none loses its status by another's crash or hang."""
    options = _options(
        device=device, seeds=seeds, seed=seed, cases=tuple(case or ()), max_bytes=max_bytes,
        level=level_of(quick, thorough), large=large, training=training,
        call_timeout=timeout, sizes=sizes_of(size), shrink_to=shrink,
    )  # fmt: skip
    from kernelproof import batch

    if repro is not None:
        outfile.check(repro)

    def judged(where: Path | str) -> Record:
        return _judge(problem, str(where), False, options)

    many = batch.candidates_in(candidate)
    if many is None:
        _finish(judged(candidate), json_, store, repro)
    elif repro is not None:
        raise UsageError(f"--repro {repro} goes with one candidate; {candidate} holds several")
    else:
        lost: list[int] = []
        done = batch.judge_each(*many, judged, lambda r: lost.append(_keep([r], store)))
        _finish_all(*done, json_, max(lost, default=0))


@app.command()
def bench(
    problem: ProblemArg,
    candidate: CandidateArg,
    json_: JsonOpt = False,
    device: DeviceOpt = None,
    seeds: SeedsOpt = 5,
    seed: SeedOpt = None,
    case: CaseOpt = None,
    quick: QuickOpt = False,
    thorough: ThoroughOpt = False,
    baseline: BaselineOpt = None,
    vs: VsOpt = None,
    rounds: RoundsOpt = 160,
    seconds: SecondsOpt = 10.0,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    training: TrainingOpt = False,
    timeout: TimeoutOpt = 60.0,
    sweep: SweepOpt = None,
    sanitize: SanitizeOpt = False,
    ncu: NcuOpt = False,
    store: StoreOpt = None,
) -> None:
    """Check a candidate, then time it beside its baselines on the first chosen case."""
    options = _options(
        device=device, seeds=seeds, seed=seed, cases=tuple(case or ()), max_bytes=max_bytes,
        level=level_of(quick, thorough),
        baselines=None if baseline is None else tuple(baseline), rounds=rounds, seconds=seconds,
        call_timeout=timeout, sizes=sizes_of(size), shrink_to=shrink, vs=tuple(vs or ()),
        store=store, training=training, sanitize=sanitize, ncu=ncu,
    )  # fmt: skip
    if sweep is not None:
        _sweep(problem, candidate, sweep, options, json_, store)
    _finish(_judge(problem, candidate, True, options), json_, store)


@app.command()
def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, no torch.compile.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path(
        "report.html"
    ),
    json_: JsonOpt = False,
    device: DeviceOpt = None,
    ladder: Annotated[
        str | None,
        typer.Option(help="Instead judge the designs of this problem, such as mla_kv."),
    ] = None,
    store: StoreOpt = None,
) -> None:
    """Prove the shipped operators on whatever this machine has, and write a report."""
    from kernelproof.demo import run
    from kernelproof.report import render

    outfile.check(output)
    if ladder is not None:
        _climb(ladder, device, output, json_, store)
    with Shown() as progress:
        records = run(quick=quick, device=device, progress=progress)
    lost = _keep(records, store)
    outfile.write(output, render(records))
    if json_:
        print_json({"records": [_as_json(r) for r in records], "report": str(output)})
    else:
        print(commands.summary(records))
        print(f"\nreport: {output}")
    raise typer.Exit(lost or (0 if all(r.status == "pass" for r in records) else 1))


@app.command()
def report(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="JSON files of records. Default: the newest of the store."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path(
        "report.html"
    ),
    count: Annotated[int, typer.Option(min=1, help="How many of the store's records.")] = 50,
    ladder: Annotated[
        Path | None,
        typer.Option(help="Instead a ladder: JSON of benchmarks/ladder.py (docs/ladder.md)."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="Instead the ladder of this session, with its records.")
    ] = None,
    suite: Annotated[
        str | None, typer.Option(help="Instead this run of a suite (`kernelproof suite list`).")
    ] = None,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Write records as one self-contained HTML file, and print their table."""
    from kernelproof.report import render
    from kernelproof.store import Store, read_json

    outfile.check(output)
    if (alone := ladder or session or suite) is not None:
        if records or sum(map(bool, (ladder, session, suite))) > 1:
            raise UsageError(f"{alone} makes a page of its own; leave the rest out")
        if session is not None:
            commands.session_page(session, output, json_, store)
        elif suite is not None:
            suite_commands.show(suite, items=False, html=output, json_=json_, store=store)
        else:
            commands.ladder_page(Path(alone), output, json_)
        return
    if records:
        found = [record for path in records for record in read_json(path)]
    else:
        found = Store(store).latest(count)
    if not found:
        raise UsageError("no records yet: run `kernelproof check` or `kernelproof demo` first")
    outfile.write(output, render(found))
    if json_:
        print_json({"records": [_as_json(r) for r in found], "report": str(output)})
    else:
        print(commands.summary(found))
        print(f"\nreport: {output}")


for _name, _command in (
    ("floors", commands.floors), ("inspect", commands.inspect), ("lint", commands.lint),
    ("race", commands.race), ("doctor", commands.doctor), ("new-op", commands.new_op),
    ("new-problem", commands.new_problem), ("prove", proof_commands.prove),
    ("verify", proof_commands.verify), ("mcp", mcp_command.mcp), ("board", store_commands.board),
    ("compare", store_commands.compare), ("export", store_commands.export),
    ("import", store_commands.import_), ("serve", serve_command.serve),
):  # fmt: skip
    app.command(_name)(_command)
app.add_typer(session_commands.app)
app.add_typer(suite_app)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"kernelproof {__version__}")
        raise typer.Exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and turns errors into exit codes; under ``--json`` one that is
    not carried out prints an object too, which says why."""
    openmp.wait_passively()
    timeline.begin()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with commands.only_json("--json" in given):
            code = app(args=given, standalone_mode=False)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        failed = failures.told(error, given)
        if "--json" in given:
            with contextlib.suppress(BrokenPipeError):  # nobody reads
                print_json(failed)
        sys.exit(failed["exit_code"])
    code = code if isinstance(code, int) else 0
    if code == _INTERRUPTED:
        print("kernelproof: interrupted", file=sys.stderr)
        if "--json" in given:
            print_json({"status": "interrupted", "message": "interrupted", "exit_code": code})
    sys.exit(code)


def _options(**fields: Any) -> Options:
    from kernelproof.options import Options

    return Options(**fields)


def _judge(problem: str, candidate: str, timed: bool, options: Options) -> Record:
    from kernelproof.worker.client import start_server

    # The worker's server imports torch while this process does the same.
    start_server()
    with uncollected():
        from kernelproof import pipeline

    timeline.mark("start and read the arguments")
    with Shown() as progress:
        return pipeline.judge(problem, candidate, timed=timed, options=options, progress=progress)


def _climb(
    problem: str, device: str | None, output: Path, json_: bool, store: str | None
) -> NoReturn:
    """Exit code 0 where every rung gets the status that it must."""
    from kernelproof import ladder
    from kernelproof.report import render
    from kernelproof.worker.client import start_server

    start_server()
    with Shown() as progress:
        found = ladder.climb(problem, device, progress)
    records = [record for _, record in found]
    unexpected = [words for rung, record in found if (words := ladder.unexpected(rung, record))]
    lost = _keep(records, store)
    outfile.write(output, render(records))
    if json_:
        both = [{"rung": g.name, "expected": g.expect, **_as_json(r)} for g, r in found]
        print_json({"records": both, "unexpected": unexpected, "report": str(output)})
    else:
        print(commands.summary(records))
        passing = sum(record.status == "pass" for record in records)
        print(f"\n{len(found)} designs, {passing} pass; {len(unexpected)} not as they must")
        print("\n".join([*unexpected, f"report: {output}"]))
    raise typer.Exit(lost or (1 if unexpected else 0))


def _sweep(
    problem: str, candidate: str, sweep: str, options: Options, json_: bool, store: str | None
) -> None:
    from kernelproof import sweep as sweeps

    lost: list[int] = []
    with Shown() as progress:
        wanted = sweeps.parse(sweep), sweeps.with_baselines(options)
        done = sweeps.run(
            problem, candidate, *wanted, progress, lambda r: lost.append(_keep([r], store))
        )
    print(sweeps.text(*done)) if not json_ else print_json(
        {"records": [_as_json(r) for r in done[0]]}
    )
    failed = any(r.status != "pass" for r in done[0])
    raise typer.Exit(max(lost, default=0) or int(failed))


def _finish(record: Record, json_: bool, store: str | None, repro: Path | None = None) -> None:
    with timeline.span("store the record"):
        lost = _keep([record], store)
    from kernelproof.report import detail

    if repro is not None and record.reproducer:
        outfile.write(repro, record.reproducer)
    if json_:
        print_json(_as_json(record))
    else:
        print(detail(record))
        # What does not compile, or not here, has nothing to show.
        if record.reproducer and (repro or record.status not in ("compile_error", "unsupported")):
            shown = f"python {repro}" if repro else "the same with --repro FILE writes a script"
            print(f"show it  {shown} (plain PyTorch, exits with 1 until the candidate is right)")
    raise typer.Exit(lost or (0 if record.status == "pass" else 1))


def _finish_all(records: Sequence[Record], faults: int, json_: bool, lost: int) -> None:
    if json_:
        print_json({"records": [_as_json(record) for record in records], "faults": faults})
    else:
        print(commands.summary(records))
        for r in records:
            if r.status != "pass":
                print(f"\n{r.candidate.name}: {r.status}: {r.verdict.message}")
    failed = any(record.status != "pass" for record in records)
    raise typer.Exit(KernelproofError.exit_code if faults else lost or int(failed))


def _keep(records: Sequence[Record], url: str | None) -> int:
    """The exit code where the store does not take them, else 0."""
    from kernelproof.store import Store

    def keep() -> None:
        store = Store(url)
        for record in records:
            store.add(record)

    return failures.kept(keep)


def _as_json(record: Record) -> dict[str, Any]:
    """The record with the two fields that outside tools look at first."""
    checks = [check.model_dump() for check in record.verdict.checks]
    body: dict[str, Any] = json.loads(record.model_dump_json())
    return {"status": record.status, "checks": checks, **body}
