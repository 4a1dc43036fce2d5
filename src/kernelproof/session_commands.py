"""`kernelproof session ...`: an attempt series at the command line."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kernelproof import session_folder
from kernelproof.arguments import (
    BaselineOpt,
    BytesOpt,
    CandidateArg,
    CaseOpt,
    DeviceOpt,
    JsonOpt,
    PlaceOpt,
    ProblemArg,
    RoundsOpt,
    SecondsOpt,
    SeedsOpt,
    ShrinkOpt,
    SizeOpt,
    StoreOpt,
    TimeoutOpt,
)
from kernelproof.bounds import MOST_SECONDS
from kernelproof.commands import as_json, print_json, print_json_text, sizes_of
from kernelproof.errors import UsageError
from kernelproof.progress import Shown
from kernelproof.resident import client, launch, place

if TYPE_CHECKING:
    from kernelproof.report.sessions import Words
    from kernelproof.types import Level, NextStep, Progress, Rules, SessionState, Started

app = typer.Typer(
    name="session",
    help="An attempt series with a budget of calls, which ends with one submission.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ShortOpt = Annotated[
    bool, typer.Option("--short", help="Figures in one line instead of all about the judgement.")
]
SessionArg = Annotated[str, typer.Argument(help="The session's id, how it begins, or its folder.")]
BudgetOpt = Annotated[int, typer.Option(min=0, help="Calls in all.")]
TimeOpt = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=MOST_SECONDS, help="Seconds, after which only a submission is taken."
    ),
]
CostOpt = Annotated[
    list[str] | None,
    typer.Option(help="CALL=N: what a compile, check, bench or inspect costs; repeatable."),
]
JudgeOpt = Annotated[
    bool,
    typer.Option("--judge/--no-judge", help="Ask the session's judge, a process that stays up."),
]
LevelOpt = Annotated[str, typer.Option(help="quick, default or thorough.")]
_LEVELS: tuple[Level, ...] = ("quick", "default", "thorough")


@app.command()
def start(
    problem: ProblemArg,
    budget: BudgetOpt = 50,
    time: TimeOpt = None,
    cost: CostOpt = None,
    device: DeviceOpt = None,
    level: LevelOpt = "default",
    submit_level: LevelOpt = "thorough",
    seeds: SeedsOpt = 5,
    case: CaseOpt = None,
    baseline: BaselineOpt = None,
    rounds: RoundsOpt = 160,
    seconds: SecondsOpt = 10.0,
    max_bytes: BytesOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    timeout: TimeoutOpt = 60.0,
    judge: JudgeOpt = True,
    judge_idle: Annotated[
        float,
        typer.Option(
            min=1.0, max=MOST_SECONDS, help="Seconds without a call, after which the judge ends."
        ),
    ] = place.IDLE,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Keep the session in this folder, which then names it; it has its store."
        ),
    ] = None,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Open a session on a problem; its id is what the other commands take."""
    from kernelproof import session
    from kernelproof.report.sessions import started

    rules = rules_of(
        budget=budget, time=time, cost=cost, device=device, level=level,
        submit_level=submit_level, seeds=seeds, case=case, max_bytes=max_bytes, size=size,
        shrink=shrink, baseline=baseline, seconds=seconds, rounds=rounds, timeout=timeout,
    )  # fmt: skip
    made = session.start(problem, rules, store=store, folder=folder)
    if judge and not place.switched_off():
        # After the session was opened: until then it may still be refused.
        name = made.session.id if folder is None else str(folder)
        _start_judge(made, session.problem_of(name, store=store), judge_idle)
    print(started(made, command(folder or ""))) if not json_ else print_json(_plain(made))


def _start_judge(made: Started, problem: str, idle: float) -> None:
    card = {
        "session": made.session.id, "problem": problem, "device": made.rules.device, "idle": idle
    }  # fmt: skip
    failed = launch.told(card)
    if failed:
        print(f"kernelproof: no judge stays up for this session: {failed}", file=sys.stderr)


@app.command()
def stop(session: SessionArg) -> None:
    """End the judge that stays up for a session; its commands then judge by themselves."""
    print(client.stop(session))


_CALLS = {
    "compile": "Build only, which is quick: errors at their lines, registers and spills.",
    "check": "Build and check that it computes the same function.",
    "bench": "Check, then time beside baselines.",
    "inspect": "What its kernels take and what holds them back.",
    "submit": "Judge it for good: fresh secret seeds, all cases, all baselines. "
    "Closes the session.",
}


def _add(name: str, words: str) -> None:
    """The command ``name``, which spends a call of a session on a candidate."""

    def command(
        session: SessionArg,
        candidate: CandidateArg,
        short: ShortOpt = False,
        json_: JsonOpt = False,
        judge: JudgeOpt = True,
        store: StoreOpt = None,
    ) -> None:
        _call(client.Ask(name, session, candidate, short, json_, store, judge))

    app.command(name, help=words)(command)


for _name, _words in _CALLS.items():
    _add(_name, _words)


@app.command()
def log(
    session: SessionArg,
    diffs: Annotated[bool, typer.Option(help="What each attempt changed.")] = True,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Show the attempts as a ladder."""
    from kernelproof import session as sessions
    from kernelproof.report.sessions import ladder

    found = sessions.log(session, store=store)
    print(ladder(found, command(session), diffs)) if not json_ else print_json(_plain(found))


@app.command(name="list")
def list_(
    count: Annotated[int, typer.Option(min=1, help="How many.")] = 20,
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """List the newest sessions."""
    from kernelproof import session as sessions
    from kernelproof.report.sessions import listed

    found = sessions.sessions(count, store=store)
    print(listed(found)) if not json_ else print_json({"sessions": [_plain(one) for one in found]})


@app.command()
def machine(
    measure: Annotated[bool, typer.Option(help="Measure its floors, once.")] = True,
    json_: JsonOpt = False,
) -> None:
    """What this machine is: GPU limits, compilers, precision, measured floors."""
    from kernelproof import facts
    from kernelproof.report.facts import machine as shown

    with Shown() as progress:
        found = facts.machine(measure, progress)
    print(shown(found)) if not json_ else print_json(_plain(found))


@app.command()
def problem(
    name: ProblemArg,
    device: PlaceOpt = None,
    size: SizeOpt = None,
    shrink: ShrinkOpt = None,
    json_: JsonOpt = False,
) -> None:
    """What is to be computed: source, cases, tolerances, baselines, the reference's time."""
    from kernelproof import facts
    from kernelproof.report.facts import problem as shown

    with Shown() as progress:
        found = facts.problem(
            name, device=device, sizes=dict(sizes_of(size)), shrink_to=shrink, progress=progress
        )
    print(shown(found)) if not json_ else print_json(_plain(found))


def command(session: str | Path = "") -> Words:
    """What gives the command line of a next step; ``session``: how the user calls the session, of
    which a folder must be kept to."""

    def line(step: NextStep, state: SessionState) -> str:
        from kernelproof.report.units import shell_path

        folder = bool(session) and session_folder.is_one(session)
        name = shell_path(str(session)) if folder else state.id
        if step.action == "start":
            return f"kernelproof session start {shell_path(state.path or state.problem)}"
        if step.action == "log":
            return f"kernelproof session log {name}"
        verb = step.then if step.action == "edit" else step.action
        return f"kernelproof session {verb} {name} CANDIDATE"

    return line


def rules_of(
    *,
    budget: int, time: float | None, cost: list[str] | None, device: str | None, level: str,
    submit_level: str, seeds: int, case: list[str] | None, max_bytes: int | None,
    size: list[str] | None, shrink: int | None, baseline: list[str] | None, seconds: float,
    rounds: int, timeout: float,
) -> Rules:  # fmt: skip
    """The rules that these options of the command line make. Raises UsageError."""
    from kernelproof.types import Rules

    return Rules(
        budget=budget, seconds=time, costs=costs_of(cost), device=device,
        level=_level("--level", level), submit_level=_level("--submit-level", submit_level),
        seeds=seeds, cases=tuple(case or ()), max_bytes=max_bytes, sizes=sizes_of(size),
        shrink_to=shrink, baselines=None if baseline is None else tuple(baseline),
        timing_seconds=seconds, rounds=rounds, call_timeout=timeout,
    )  # fmt: skip


def costs_of(given: list[str] | None) -> dict[str, int]:
    """``CALL=N`` texts as a dict. Raises UsageError for what is none."""
    found = {}
    for text in given or ():
        name, _, value = text.partition("=")
        if not value.isdigit():
            raise UsageError(f"--cost {text!r} is not CALL=N with a whole number, as in bench=3")
        found[name] = int(value)
    return found


@dataclasses.dataclass(frozen=True)
class Told:
    """What a call's command says on stdout, its exit code, and whether the session is closed."""

    text: str
    exit_code: int
    closed: bool


def carried_out(
    what: Any, session: str, candidate: str, short: bool, json_: bool, store: str | None,
    progress: Progress,
) -> Told:  # fmt: skip
    """Carry out a call in this process. Raises as `session.call`."""
    from kernelproof import session as sessions
    from kernelproof.report.sessions import answer

    found = sessions.call(session, what, candidate, store=store, progress=progress)
    text = answer(found, command(session), not short) if not json_ else as_json(_plain(found))
    return Told(text, 0 if found.status == "pass" else 1, found.session.state == "closed")


def _call(ask: client.Ask) -> None:
    """A call of a command: carried out by the session's judge, or here."""
    exit_code = client.carried_out(ask)
    if exit_code is not None:
        raise typer.Exit(exit_code)
    from kernelproof.worker.client import start_server

    start_server()
    with Shown() as progress:
        told = carried_out(
            ask.what, ask.session, ask.candidate, ask.short, ask.json, ask.store, progress
        )
    (print_json_text if ask.json else print)(told.text)
    if told.closed:
        client.stop(ask.session)
    raise typer.Exit(told.exit_code)


def _level(option: str, text: str) -> Level:
    for level in _LEVELS:
        if text == level:
            return level
    raise UsageError(f"{option} {text!r}: there are {', '.join(_LEVELS)}")


def _plain(value: Any) -> Any:
    return json.loads(value.model_dump_json())
