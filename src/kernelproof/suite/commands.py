"""`kernelproof suite ...`: many problems and many candidates at the command line."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelproof import outfile
from kernelproof.arguments import (
    BaselineOpt,
    BytesOpt,
    DeviceOpt,
    JsonOpt,
    QuickOpt,
    RoundsOpt,
    SecondsOpt,
    SeedOpt,
    SeedsOpt,
    ShrinkOpt,
    StoreOpt,
    ThoroughOpt,
    TimeoutOpt,
)
from kernelproof.bounds import MOST_SECONDS
from kernelproof.commands import level_of, print_json
from kernelproof.errors import UsageError

app = typer.Typer(
    name="suite",
    help="Many problems, many candidates, many GPUs: run, show, compare.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
SuiteArg = Annotated[
    str | None, typer.Argument(help="A folder in one of the formats of docs/suites.md.")
]
CandidatesArg = Annotated[str | None, typer.Argument(help="Where the candidates are.")]
RunArg = Annotated[str, typer.Argument(help="A run's id, or how it begins.")]
FormatOpt = Annotated[
    str | None, typer.Option(help="Of the suite. Default: the one that its layout is of.")
]
LevelOpt = Annotated[int | None, typer.Option(help="Only this level, of a suite that has levels.")]
WorkersOpt = Annotated[str, typer.Option(help="local, or ray: this machine, or a Ray cluster.")]
AddressOpt = Annotated[
    str | None, typer.Option(help="Of the Ray cluster. Default: RAY_ADDRESS, else one is started.")
]
GpusOpt = Annotated[
    str | None, typer.Option(help="Numbers of GPUs of this machine, such as 0,1. Default: all.")
]
JobsOpt = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Beside GPUs, how many candidates are compiled at a time; without, how many are "
        "judged at a time on the CPU.",
    ),
]
LanesOpt = Annotated[
    int, typer.Option(min=1, help="Candidates judged at a time on each GPU; needs --no-time.")
]
ResumeOpt = Annotated[
    str | None, typer.Option(help="Go on with this run: its id, or how that begins.")
]
TimeOpt = Annotated[bool, typer.Option("--time/--no-time", help="Time what passes, or only check.")]
LimitOpt = Annotated[
    float,
    typer.Option(
        min=0.1, max=MOST_SECONDS, help="Seconds after which an item is given up, its worker ended."
    ),
]


@app.command()
def run(
    suite: SuiteArg = None,
    candidates: CandidatesArg = None,
    format: FormatOpt = None,
    level: LevelOpt = None,
    workers: WorkersOpt = "local",
    address: AddressOpt = None,
    gpus: GpusOpt = None,
    jobs: JobsOpt = None,
    lanes: LanesOpt = 1,
    resume: ResumeOpt = None,
    time: TimeOpt = True,
    limit: LimitOpt = 900.0,
    device: DeviceOpt = None,
    seeds: SeedsOpt = 5,
    seed: SeedOpt = None,
    quick: QuickOpt = False,
    thorough: ThoroughOpt = False,
    baseline: BaselineOpt = None,
    rounds: RoundsOpt = 160,
    seconds: SecondsOpt = 10.0,
    max_bytes: BytesOpt = None,
    shrink: ShrinkOpt = None,
    timeout: TimeoutOpt = 60.0,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Judge every candidate of a suite. Each result is in the store as it comes; a run that ended
    early, however it did, goes on with --resume RUN, which needs nothing else, unless the suite
    lies elsewhere now: --resume RUN SUITE CANDIDATES."""
    from kernelproof.suite import runs

    means = runs.Means(_workers(workers), gpus, jobs, limit, address, lanes)
    options = given(
        device=device, seeds=seeds, seed=seed, level=level_of(quick, thorough),
        baselines=baseline, rounds=rounds, seconds=seconds, max_bytes=max_bytes, shrink_to=shrink,
        call_timeout=timeout,
    )  # fmt: skip
    with Shown() as shown:
        how: dict[str, Any] = {
            "means": means, "store": store, "told": shown.told, "began": shown.began,
        }  # fmt: skip
        if resume is not None:
            told = {"--format": format, "--level": level, "--no-time": not time}
            given_too = [*options, *(name for name, value in told.items() if value)]
            if other := [str(one) for one in given_too if one]:
                raise UsageError(
                    f"--resume {resume} judges as the run was begun; leave {', '.join(other)} out, "
                    "or start another run"
                )
            state = runs.resume(resume, suite, candidates, **how)
        elif suite is None:
            raise UsageError("which suite? kernelproof suite run SUITE CANDIDATES, or --resume RUN")
        else:
            state = runs.start(
                suite, candidates, format=format, level=level, timed=time, options=options, **how
            )
    _print(state, json_, items=False)
    raise typer.Exit(0 if all(r.status == "pass" for r in state.results) else 1)


@app.command()
def show(
    run: RunArg,
    items: Annotated[bool, typer.Option(help="Each result, or only the numbers.")] = True,
    html: Annotated[Path | None, typer.Option(help="Write the run's page here.")] = None,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Show the numbers and the results of a run, also of one that is still going."""
    from kernelproof.suite import runs

    state = runs.state(run, store=store)
    if html is not None:
        from kernelproof.report.suite_page import render

        outfile.write(html, render(state))
    _print(state, json_, items)
    if html is not None and not json_:
        print(f"\nreport: {html}")


@app.command()
def compare(a: RunArg, b: RunArg, json_: JsonOpt = False, store: StoreOpt = None) -> None:
    """Show what differs between two runs: verdicts, and times whose intervals do not meet."""
    from kernelproof.report.suites import compared
    from kernelproof.suite import numbers, runs

    found = numbers.compare(runs.state(a, store=store), runs.state(b, store=store))
    print(compared(found)) if not json_ else print_json(json.loads(found.model_dump_json()))


@app.command(name="list")
def list_(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """List the newest runs."""
    from kernelproof.report.suites import listed
    from kernelproof.store import Suites

    found = Suites(store).latest(count)
    if json_:
        print_json({"runs": [{**json.loads(r.model_dump_json()), "judged": n} for r, n in found]})
    else:
        print(listed(found))


class Shown:
    """The progress of a run on stderr: a bar with rate and time left on a terminal, else a line a
    result."""

    def __enter__(self) -> Shown:
        self._bar: Any = None
        self._judged = self._missing = 0
        self._started = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            self._bar = Progress(
                MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"),
                console=Console(stderr=True),
            )  # fmt: skip
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._say_missing()
        if self._bar is not None:
            self._bar.stop()

    def began(self, run: Any) -> None:
        from kernelproof.report.suites import title

        self._say(f"{title(run)}; if it ends early: kernelproof suite run --resume {run.id}")

    def told(self, result: Any, done: int, count: int) -> None:
        from kernelproof.report.suites import line

        self._judged += result.attempts > 0
        # They come first and may be most: told together.
        if result.status == "missing":
            self._missing += 1
        else:
            self._say_missing()
        pace = rate(self._judged, time.monotonic() - self._started, count - done)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=count, description=pace)
            if result.status not in ("pass", "missing"):
                self._say(line(result))
        elif result.status != "missing":
            self._say(f"[{done}/{count}] {line(result)}" + (f"; {pace}" if pace else ""))

    def _say_missing(self) -> None:
        if self._missing:
            from kernelproof.report.units import many

            self._say(f"{many(self._missing, 'problem')} without a candidate: missing")
        self._missing = 0

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)


def rate(judged: int, seconds: float, left: int) -> str:
    """How fast a run goes and how long it still takes, such as "12.0 a minute, 3 min left"."""
    if judged <= 0 or seconds <= 0:
        return ""
    each = seconds / judged
    remaining = left * each
    text = f"{remaining:.0f} s" if remaining < 120 else f"{remaining / 60:.0f} min"
    return f"{60 / each:.3g} a minute, {text} left"


def given(**fields: Any) -> dict[str, Any]:
    """Those of ``fields`` that are not what `pipeline.Options` has by itself, as JSON has them."""
    import dataclasses

    from kernelproof.options import Options

    usual = {f.name: f.default for f in dataclasses.fields(Options)}
    return {k: v for k, v in fields.items() if v != usual[k]}


def _workers(text: str) -> Any:
    if text not in ("local", "ray"):
        raise UsageError(f"--workers {text}: there are local and ray")
    return text


def _print(state: Any, json_: bool, items: bool) -> None:
    from kernelproof.report.suites import shown

    if json_:
        print_json(json.loads(state.model_dump_json()))
    else:
        print(shown(state, items))
