"""Time a candidate that passed, and check what was timed: its outputs, and the worker's clock."""

from __future__ import annotations

import contextlib
from time import sleep
from typing import TYPE_CHECKING, Any

from kernelproof import physics
from kernelproof.contestants import Field, Race
from kernelproof.errors import CandidateError
from kernelproof.resize import tensor_bytes
from kernelproof.rivals import TimedRival, mismatch
from kernelproof.spare import starved
from kernelproof.subject import CandidateProcess, threads
from kernelproof.timed_worker import CLOCKS, Timed, TimedCandidate
from kernelproof.timeline import span
from kernelproof.timing import Budget, Entrant, Picks, clocks, measure
from kernelproof.types import (
    CURRENT_STREAM,
    Call,
    Check,
    Clock,
    Progress,
    Status,
    Timing,
    Verdict,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# Calls on inputs whose timed output is wrong: are they right when they are not timed?
_UNTIMED_CALLS = 3
# Calls by which new contents are compared with contents seen before, and how often.
_AGAIN_CALLS = 4
_AGAIN_TIMES = 3
# Calls whose inputs are sent together where the first of them looks too slow, and how often.
_BATCH_CALLS = 16
_PAIRS = 11
# A clock that disagrees is asked again before anybody is accused: other load on the machine passes,
# hidden work does not.
_AGAIN = 3
_AGAIN_ROUNDS = 6
_AGAIN_MOST = 8
_AGAIN_WAIT = 0.5
_AGAIN_SLICE = 0.02
# Far longer than OpenMP's threads spin, on a loaded machine too.
_AGAIN_REST = 0.25
_WORKED = ("worked", "went_by")
_UNGRAPHED = (
    "no CUDA graph, which would not hold what it launches on another stream than "
    "torch.cuda.current_stream()"
)


@span("time")
def time(
    field: Field, subject: CandidateProcess, verdict: Verdict, progress: Progress
) -> tuple[Verdict, Timing | None]:
    """Time ``subject`` beside the others; with the verdict, which what was timed may change.

    Args:
        verdict: a passing one.
    """
    return judged(field, subject, verdict, *measured(field, subject, verdict, progress), progress)


def measured(
    field: Field, subject: CandidateProcess, verdict: Verdict, progress: Progress
) -> tuple[Timing, Timed]:  # fmt: skip
    """The timing, of which nothing is judged yet; and the candidate as it was timed."""
    race = field.race
    # Not beside the candidate's first call either.
    field.wait()
    subject.construct(*field.payload)
    picks = Picks(tensor_bytes)
    aside = any(c.name == CURRENT_STREAM and c.outcome == "note" for c in verdict.checks)
    mine = TimedCandidate(
        subject, field.fresh, race.options.call_timeout, picks, field.payload,
        ungraphed=_UNGRAPHED if aside else "",
    )  # fmt: skip
    entrants = field.entrants()
    for other in (*field.baselines.values(), field.floor, *field.rivals.values()):
        other.resting = mine
    mine.resting = field.eager
    timing = measure(
        Entrant(subject.candidate.name, mine),
        entrants,
        Entrant(field.floor.name, field.floor),
        case=race.case.name,
        device=race.device,
        threads=threads(),
        flops=race.reference.count("FLOPS", race.case),
        nbytes=race.reference.count("BYTES", race.case),
        budget=Budget(rounds=race.options.rounds, seconds=race.options.seconds),
        seed=race.seed,
        progress=progress,
    )
    if race.cuda and mine.failure is None:
        with contextlib.suppress(CandidateError):  # which it keeps
            _look_at_unseen(mine)
    return physics.attached(timing, race, field.fresh.most), mine


def _look_at_unseen(mine: Timed) -> None:
    """Also again after a while, where results seem to be kept: the quickest times of all looks are
    compared. Now, since the outputs of these calls are judged with those of all others."""

    def look(_: int) -> Check | None:
        mine.look_at_unseen()
        return next((check for check in _unseen(mine) if check.outcome == "fail"), None)

    _confirmed(look)


def _unseen(mine: Timed) -> list[Check]:
    return [clocks.unseen(clock, found) for clock, found in mine.unseen.items() if found]


def judged(
    field: Field, subject: CandidateProcess, verdict: Verdict, timing: Timing, mine: Timed,
    progress: Progress,
) -> tuple[Verdict, Timing | None]:  # fmt: skip
    """What `measured` gave, once the outputs of timed calls and the clocks were looked at."""
    race, payload = field.race, field.payload
    progress("check what was timed", 0, 1)

    def untimed(inputs: list[Any], seed: int) -> Any:
        with subject.another() as again:
            again.construct(*payload)
            return again.call(inputs, seed, False, _UNTIMED_CALLS)

    notes = _mismatches(race, verdict, field.rivals)
    timing = timing.model_copy(update={"notes": (*timing.notes, *notes)})
    return _settled(race, verdict, timing, mine, field.eager, untimed, _rest(field, mine))


def _rest(field: Field, mine: Timed) -> Check:
    """Whether the candidate worked while others were timed. OpenMP's threads spin for a while after
    their call, on a busy machine into the time of the others: before anybody is accused it is
    looked at again after a pause."""
    others: list[Timed] = [*field.baselines.values(), field.floor, *field.rivals.values()]
    # Rivals are candidates, who may do that to themselves.
    slowed = [name for name, one in field.baselines.items() if one.rescheduled]
    if slowed or field.floor.rescheduled:
        return clocks.not_at_rest([*slowed, *([field.floor.name] if not slowed else [])])
    usual = mine.worked / mine.went_by if mine.went_by else 0.0

    def look(attempt: int) -> Check:
        if not attempt:
            worked, went_by = (sum(getattr(o, name) for o in others) for name in _WORKED)
            return clocks.at_rest(worked, went_by, usual)
        one = field.eager if field.eager is not None and field.eager.worker.alive else field.floor
        one.worked = one.went_by = 0.0
        for number in range(_AGAIN_ROUNDS):
            sleep(_AGAIN_REST)
            while one.went_by < _AGAIN_REST * (number + 1):
                one.sample("host", min(_AGAIN_MOST, one.fresh.most), -2 - number)
        return clocks.at_rest(one.worked, one.went_by, usual)

    found = _confirmed(look)
    assert found is not None
    return found


@span("check what was timed")
def _settled(
    race: Race, verdict: Verdict, timing: Timing, mine: Timed, eager: Timed | None,
    untimed: Callable[[list[Any], int], Any], rest: Check,
) -> tuple[Verdict, Timing | None]:  # fmt: skip
    """The verdict after the timed outputs were judged and the clocks compared."""
    from kernelproof.check import Plan
    from kernelproof.check.timed import judge

    plan = Plan(seeds=(race.seed,), device=race.device, evidence=verdict.evidence)
    assert mine.picks is not None
    try:
        found = judge(race.reference, plan, race.case, mine.picks.held, untimed)
        if found.status != "pass":
            return failed(verdict, found.status, [found.check], found.call), None
        checks = [found.check, rest]
        if mine.nonsense:
            checks.append(Check(name="clock", outcome="fail", message=mine.nonsense))
        elif mine.failure is not None:
            return _ended(verdict, mine.failure), None
        elif timing.candidate.host is not None:
            checks += _clock_checks(race, timing, mine, eager)
    except CandidateError as error:
        return _ended(verdict, error), None
    bad = [check for check in checks if check.outcome == "fail"]
    if bad:
        return failed(verdict, "cheat", [*bad, *(c for c in checks if c not in bad)], None), None
    timing = clocks.without_warm(timing, checks)
    return verdict.model_copy(update={"checks": (*verdict.checks, *checks)}), timing


def _ended(verdict: Verdict, error: CandidateError) -> Verdict:
    """A passing verdict, turned by an error in a timed call. Timing holds many inputs and outputs
    at once: where memory ends, what was checked is right all the same, and has no times."""
    text = f"while timed: {error.message}"
    if starved(error.message):
        check = Check(name="timing", outcome="note", message=f"no times: {text}")
        return verdict.model_copy(update={"checks": (*verdict.checks, check)})
    check = Check(name="timing", outcome="fail", message=text)
    return failed(verdict, error.status, [check], None)  # type: ignore[arg-type]


@span("compare the clocks")
def _clock_checks(race: Race, timing: Timing, mine: Timed, eager: Timed | None) -> list[Check]:
    checks: list[Check | None] = []
    if eager is not None:
        for clock in CLOCKS:
            checks.append(_of_parent(clock, timing, mine, eager))
            if (last := checks[-1]) is not None and last.outcome == "fail":
                break  # the other clocks would tell the same, and each is asked several times
    most = min(_BATCH_CALLS, mine.fresh.most)
    if not race.cuda and most >= _BATCH_CALLS // 2 and clocks.uneven(timing.candidate):
        pairs = [(mine.again(1, new=True)[0], mine.again(most, new=True)[0]) for _ in range(_PAIRS)]
        alone, among = zip(*pairs, strict=True)
        checks.append(clocks.batched(alone, among, most))
    calls = min(_AGAIN_CALLS, mine.fresh.most)
    new, seen = [], []
    for _ in range(_AGAIN_TIMES):
        new += mine.again(calls, new=True)
        seen += mine.again(calls, new=False)
    checks.append(clocks.repeated(new, seen, race.cuda))
    checks += _unseen(mine)
    if eager is not None and eager.worker.alive:
        beside = eager
        checks.append(_confirmed(lambda _: clocks.saving(timing, mine.once, beside.once)))
    return [check for check in checks if check is not None]


def _of_parent(clock: Clock, timing: Timing, mine: Timed, eager: Timed) -> Check | None:
    """The parent's clock beside that of the worker."""

    def look(attempt: int) -> Check | None:
        if attempt:
            for one in (mine, eager):
                one.outside[clock] = {}
            series = getattr(timing.candidate, clock)
            calls = max(1, min(_AGAIN_MOST, mine.fresh.most, round(_AGAIN_SLICE / series.median)))
            for number in range(_AGAIN_ROUNDS):
                for one in (eager, mine):
                    one.sample(clock, calls, -2 - number)
        return clocks.of_parent(clock, timing.candidate, mine.outside[clock], eager.outside[clock])

    return _confirmed(look)


def _confirmed(look: Callable[[int], Check | None]) -> Check | None:
    """What ``look`` finds, with the number of the attempt, where it is no failure; else what it
    still finds after a while."""
    found = look(0)
    for attempt in range(1, _AGAIN + 1):
        if found is None or found.outcome != "fail":
            break
        sleep(_AGAIN_WAIT * attempt)
        found = look(attempt)
    return found


def failed(verdict: Verdict, status: Status, checks: list[Check], call: Call | None) -> Verdict:
    """A passing verdict, turned by ``checks``, of which the first gives the message."""
    return verdict.model_copy(
        update={
            "status": status, "proof": False, "compat": False, "message": checks[0].message,
            "checks": (*verdict.checks, *checks), "failing": call,
        }
    )  # fmt: skip


def _mismatches(race: Race, verdict: Verdict, rivals: dict[str, TimedRival]) -> list[str]:
    """Notes on rivals that do not compute the same: they are not judged, but one should know."""
    from kernelproof.check import Plan
    from kernelproof.check.timed import judge

    plan = Plan(seeds=(race.seed,), device=race.device, evidence=verdict.evidence)

    def judged(timed: Any, untimed: Any) -> Any:
        def calls(inputs: list[Any], seed: int) -> Any:
            return untimed(inputs, seed, _UNTIMED_CALLS)

        return judge(race.reference, plan, race.case, timed, calls)

    found = [mismatch(name, one, judged) for name, one in rivals.items() if one.worker.alive]
    return [note for note in found if note]
