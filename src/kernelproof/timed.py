"""Time a candidate that passed, and check what was timed: its outputs, and the worker's clock."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import physics
from kernelproof.baselines import EAGER, Baseline
from kernelproof.errors import CandidateError
from kernelproof.resize import tensor_bytes
from kernelproof.rivals import Rival, TimedRival, mismatch
from kernelproof.subject import CLOCKS, CandidateProcess, Timed, TimedModule, threads
from kernelproof.timing import Budget, Entrant, Fresh, Picks, clocks, measure
from kernelproof.types import Call, Case, Check, Progress, Status, Timing, Verdict
from kernelproof.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kernelproof.pipeline import Options
    from kernelproof.problem import Reference

_FLOOR = Path(__file__).parent / "timing" / "floor.py"
# Calls on inputs whose timed output is wrong: are they right when they are not timed?
_UNTIMED_CALLS = 3
# Calls by which new contents are compared with contents seen before, and how often.
_AGAIN_CALLS = 4
_AGAIN_TIMES = 3
# Calls whose inputs are sent together where the first of them looks too slow, and how often.
_BATCH_CALLS = 16
_PAIRS = 11


@dataclasses.dataclass(frozen=True)
class Race:
    """What is timed: one case of a problem, on one device, with the weights of one seed; and what
    it is timed beside."""

    reference: Reference
    case: Case
    device: str
    seed: int
    baselines: Sequence[Baseline]
    rivals: Sequence[Rival]
    options: Options

    @property
    def cuda(self) -> bool:
        return self.device != "cpu"


def time(
    race: Race,
    subject: CandidateProcess,
    payload: tuple[Any, Any, int, Any],
    verdict: Verdict,
    secret: int,
    progress: Progress,
) -> tuple[Verdict, Timing | None]:
    """Time ``subject`` beside the baselines; with the verdict, which what was timed may change.

    Args:
        payload: arguments, seed and weights to construct with.
        verdict: a passing one.
        secret: what the seeds of the timed inputs come from.
    """
    subject.construct(*payload)
    fresh = Fresh(lambda seed: _inputs(race, seed), tensor_bytes, secret, race.cuda)
    picks = Picks(tensor_bytes)
    built = subject.import_seconds, subject.build_seconds - subject.import_seconds
    mine = Timed(subject.worker, fresh, race.options.call_timeout, picks, built=built)
    workers: list[Worker] = []
    try:
        others = _baselines(race, fresh, payload, workers)
        rivals = _rivals(race, fresh, payload, workers)
        floor = _floor(race, fresh, workers)
        timing = measure(
            Entrant(subject.candidate.name, mine),
            [Entrant(name, one) for name, one in {**others, **rivals}.items()],
            floor,
            case=race.case.name,
            device=race.device,
            threads=threads(),
            flops=race.reference.count("FLOPS", race.case),
            nbytes=race.reference.count("BYTES", race.case),
            budget=Budget(rounds=race.options.rounds, seconds=race.options.seconds),
            seed=race.seed,
            progress=progress,
        )
        timing = physics.attached(timing, race, fresh.most)
        progress("check what was timed", 0, 1)

        def untimed(inputs: list[Any], seed: int) -> Any:
            with subject.another() as again:
                again.construct(*payload)
                return again.call(inputs, seed, False, _UNTIMED_CALLS)

        timing = timing.model_copy(
            update={"notes": (*timing.notes, *_mismatches(race, verdict, rivals))}
        )
        return _settled(race, verdict, timing, mine, others.get(EAGER), untimed)
    finally:
        for worker in workers:
            worker.close()


def _settled(
    race: Race, verdict: Verdict, timing: Timing, mine: Timed, eager: Timed | None,
    untimed: Callable[[list[Any], int], Any],
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
        checks = [found.check]
        if mine.nonsense:
            checks.append(Check(name="clock", outcome="fail", message=mine.nonsense))
        if timing.candidate.host is not None and not timing.candidate.problem:
            checks += _clock_checks(race, timing, mine, eager)
    except CandidateError as error:
        check = Check(name="timing", outcome="fail", message=f"while timed: {error.message}")
        return failed(verdict, error.status, [check], None), None  # type: ignore[arg-type]
    bad = [check for check in checks if check.outcome == "fail"]
    if bad:
        return failed(verdict, "cheat", [*bad, *(c for c in checks if c not in bad)], None), None
    timing = clocks.without_warm(timing, checks)
    return verdict.model_copy(update={"checks": (*verdict.checks, *checks)}), timing


def _clock_checks(race: Race, timing: Timing, mine: Timed, eager: Timed | None) -> list[Check]:
    checks: list[Check | None] = []
    if eager is not None:
        for clock in CLOCKS:
            outside = mine.outside[clock], eager.outside[clock]
            checks.append(clocks.of_parent(clock, timing.candidate, *outside))
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
    if eager is not None and eager.worker.alive:
        checks.append(clocks.saving(timing, mine.once, eager.once))
    return [check for check in checks if check is not None]


def failed(verdict: Verdict, status: Status, checks: list[Check], call: Call | None) -> Verdict:
    """A passing verdict, turned by ``checks``, of which the first gives the message."""
    return verdict.model_copy(
        update={
            "status": status, "proof": False, "compat": False, "message": checks[0].message,
            "checks": (*verdict.checks, *checks), "failing": call,
        }
    )  # fmt: skip


def _baselines(
    race: Race, fresh: Fresh, payload: Any, workers: list[Worker]
) -> dict[str, TimedModule]:
    found = {}
    path = race.reference.problem.path
    for one in race.baselines:
        found[one.name] = TimedModule(
            one.name, path, one.attr, race.device, payload, fresh, race.options, wrap=one.wrap,
            tf32=one.tf32,
        )  # fmt: skip
        workers.append(found[one.name].worker)
    return found


def _rivals(race: Race, fresh: Fresh, payload: Any, workers: list[Worker]) -> dict[str, TimedRival]:
    found = {}
    for one in race.rivals:
        process = CandidateProcess(one.candidate, race.device, race.options, one.hides)
        workers.append(process.worker)
        picks = Picks(tensor_bytes)
        found[one.name] = TimedRival(process, fresh, race.options.call_timeout, picks, payload)
    return found


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


def _floor(race: Race, fresh: Fresh, workers: list[Worker]) -> Entrant:
    """The cheapest call there is; it takes the first tensor of the inputs."""
    import torch

    def first(inputs: list[Any]) -> list[Any]:
        return [next((x for x in inputs if isinstance(x, torch.Tensor)), torch.zeros(1))]

    name = "empty launch" if race.cuda else "empty call"
    nothing: Any = ([], {}, race.seed, {})
    timed = TimedModule(
        name, str(_FLOOR), "Model", race.device, nothing, fresh, race.options, only=first
    )
    workers.append(timed.worker)
    return Entrant(name, timed)


def _inputs(race: Race, seed: int) -> list[Any]:
    from kernelproof.seeding import seed_all

    seed_all(seed)
    return race.reference.inputs(race.case)
