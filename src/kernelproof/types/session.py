"""An attempt series: its rules, the answers of its calls, its ladder."""

from __future__ import annotations

import datetime
from typing import Literal

from kernelproof.types.base import Evidence, Frozen, Level, Real, Status
from kernelproof.types.inspection import Inspection, KernelFacts
from kernelproof.types.record import Record
from kernelproof.types.timing import Ratio

What = Literal["compile", "check", "bench", "inspect", "submit"]
Action = Literal["edit", "compile", "check", "bench", "inspect", "submit", "log", "start"]


class Rules(Frozen):
    """What a session allows. ``budget``: calls; ``costs``: what one of a kind takes from it (1
    where nothing is said). ``seconds``: after this time nothing is tried any more. ``level`` of its
    checks and ``submit_level`` of its submission; ``timing_seconds`` and ``rounds``: at most, of a
    timing; the rest is as of `options.Options`."""

    budget: int = 50
    seconds: float | None = None
    costs: dict[str, int] = {}
    device: str | None = None
    level: Level = "default"
    submit_level: Level = "thorough"
    seeds: int = 5
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    shrink_to: int | None = None
    baselines: tuple[str, ...] | None = None
    timing_seconds: float = 10.0
    rounds: int = 160
    call_timeout: float = 60.0


class NextStep(Frozen):
    """The next sensible action, and why. ``candidate``: of an action on one, which; ``then``: the
    call that tells whether an edit was right."""

    action: Action
    why: str
    candidate: str = ""
    then: What = "check"


class SessionState(Frozen):
    """Where a session stands. ``path``: of the problem, or the name of one that comes with
    kernelproof, as `session start` takes it. ``left``: of the budget. ``seconds_left``: None
    without a limit. ``running``: calls that have no answer yet."""

    id: str
    problem: str
    path: str = ""
    created: datetime.datetime
    state: Literal["open", "submitting", "closed"]
    budget: int
    used: int
    left: int
    seconds_left: float | None = None
    calls: int = 0
    running: int = 0


class Started(Frozen):
    """A new session."""

    session: SessionState
    rules: Rules
    next: NextStep


class Diagnostic(Frozen):
    """One error of a compiler: where, what, and the lines of the source around it, of which the
    one with the error begins with ">". ``line`` is 0 where it is not known."""

    file: str
    line: int
    column: int = 0
    message: str
    context: tuple[str, ...] = ()


class Summary(Frozen):
    """The figures of a call by which attempts are compared. ``bits``: effective bits, the fewest;
    ``worst`` over ``limit`` is the proof ratio. ``registers``, ``spilled`` bytes and ``shared``
    bytes are the most of any kernel. ``time``: seconds per call, median and both ends of its 95 %
    interval; ``clock``: of it; ``eager``: beside eager."""

    evidence: Evidence = "none"
    bits: Real | None = None
    worst: Real | None = None
    limit: float | None = None
    compat: bool | None = None
    registers: int | None = None
    spilled: int | None = None
    shared: int | None = None
    time: tuple[float, float, float] | None = None
    clock: str = ""
    eager: Ratio | None = None


class CallAnswer(Frozen):
    """What came of one call. ``digest``: of the candidate. ``changed``: what its sources are beside
    the attempt before, in a few words. ``record``: of a judgement. ``record_id``: in the store."""

    session: SessionState
    number: int
    what: What
    candidate: str
    digest: str
    changed: str
    status: Status
    message: str
    seconds: float
    summary: Summary = Summary()
    diagnostics: tuple[Diagnostic, ...] = ()
    detail: str = ""
    kernels: tuple[KernelFacts, ...] = ()
    inspection: Inspection | None = None
    record: Record | None = None
    record_id: str = ""
    notes: tuple[str, ...] = ()
    next: NextStep


class Attempt(Frozen):
    """One rung of a session's ladder. ``diff``: unified, of the sources since the attempt before.
    ``best``: the quickest that passed; ``tied``: its time cannot be told from the best's."""

    number: int
    what: What
    state: Literal["running", "done", "lost", "refused"]
    started: datetime.datetime
    seconds: float | None
    cost: int
    candidate: str
    digest: str
    changed: str
    diff: str
    status: Status | None = None
    message: str = ""
    summary: Summary = Summary()
    record_id: str = ""
    best: bool = False
    tied: bool = False


class SessionLog(Frozen):
    """A session with all its attempts."""

    session: SessionState
    rules: Rules
    attempts: tuple[Attempt, ...]
    best: int | None
    next: NextStep
