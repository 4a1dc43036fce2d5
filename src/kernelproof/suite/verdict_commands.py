"""`kernelproof suite rejudge` and `suite export`: a run beside the harness that its suite is of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from kernelproof import outfile
from kernelproof.arguments import (
    BytesOpt,
    DeviceOpt,
    JsonOpt,
    QuickOpt,
    SeedsOpt,
    ShrinkOpt,
    StoreOpt,
    ThoroughOpt,
    TimeoutOpt,
)
from kernelproof.commands import level_of, print_json
from kernelproof.errors import UsageError
from kernelproof.suite.commands import (
    CandidatesArg,
    FormatOpt,
    GpusOpt,
    JobsOpt,
    LanesOpt,
    LevelOpt,
    LimitOpt,
    RunArg,
    Shown,
    SuiteArg,
    WorkersOpt,
    _workers,
    app,
    given,
)

__all__ = ["app"]

OfRunOpt = Annotated[
    str | None, typer.Option("--run", help="Of the results of this run; nothing is judged.")
]
ByOpt = Annotated[str, typer.Option(help="Whose verdict is written: proof or compat.")]


@app.command()
def rejudge(
    suite: SuiteArg = None,
    candidates: CandidatesArg = None,
    run: OfRunOpt = None,
    format: FormatOpt = None,
    level: LevelOpt = None,
    workers: WorkersOpt = "local",
    gpus: GpusOpt = None,
    jobs: JobsOpt = None,
    lanes: LanesOpt = 1,
    limit: LimitOpt = 900.0,
    device: DeviceOpt = None,
    seeds: SeedsOpt = 5,
    quick: QuickOpt = False,
    thorough: ThoroughOpt = False,
    max_bytes: BytesOpt = None,
    shrink: ShrinkOpt = None,
    timeout: TimeoutOpt = 60.0,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Judge published candidates again and list the verdicts of their harness that do not stand:
    accepted there and not right, or refused there and right. Nothing is timed."""
    from kernelproof.suite import rejudge as again
    from kernelproof.suite import runs

    if (run is None) == (suite is None):
        raise UsageError("which candidates? kernelproof suite rejudge SUITE [CANDIDATES], or --run")
    if run is not None:
        state = runs.state(run, store=store)
    else:
        options = given(
            device=device, seeds=seeds, level=level_of(quick, thorough), max_bytes=max_bytes,
            shrink_to=shrink, call_timeout=timeout,
        )  # fmt: skip
        with Shown() as shown:
            state = runs.start(
                str(suite), candidates, format=format, level=level, timed=False, options=options,
                means=runs.Means(_workers(workers), gpus, jobs, limit, lanes=lanes), store=store,
                told=shown.told, began=shown.began,
            )  # fmt: skip
    found = again.rejudged(_suite_of(state.run), state.results, _records(store))
    print(again.text(found)) if not json_ else print_json(again.as_json(found))
    raise typer.Exit(1 if any(one.change == "overturned" for one in found) else 0)


@app.command()
def export(
    run: RunArg,
    file: Annotated[Path, typer.Argument(help="Where the results are written.")],
    by: ByOpt = "proof",
    store: StoreOpt = None,
) -> None:
    """Write a run's results as the suite's own scripts read them: eval_results.json of KernelBench,
    Trace lines of flashinfer-bench."""
    from kernelproof.suite import exports, runs

    if by not in ("proof", "compat"):
        raise UsageError(f"--by {by}: there are proof and compat")
    state = runs.state(run, store=store)
    text = exports.export(_suite_of(state.run), state.results, _records(store), by)  # type: ignore[arg-type]
    outfile.write(file, text)
    print(f"results: {file}")


def _suite_of(run: Any) -> Any:
    from kernelproof.suite import formats

    return formats.load(run.path, run.format, run.level, run.candidates)


def _records(store: str | None) -> Any:
    from kernelproof.store import Store

    return Store(store).get
