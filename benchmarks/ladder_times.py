"""Time all rungs of a ladder in one interleaved run; see ladder.py.

The shipped operator, the last rung, is timed as `kernelproof bench` times a candidate, and all
others as those that `--vs` names: each in a worker of its own, all in the same rounds on the same
inputs, beside eager and the problem's best baseline. So a problem has its reference, its baselines
and the floors of the device only once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from kernelproof import candidate as candidates
from kernelproof import contestants, ladder, physics, timed
from kernelproof import problem as problems
from kernelproof.ahead import Ahead, many_processors
from kernelproof.baselines import chosen
from kernelproof.check import Plan, check
from kernelproof.errors import KernelproofError
from kernelproof.pipeline import Options
from kernelproof.rivals import Rival
from kernelproof.subject import CandidateProcess, payload_of
from kernelproof.timing.stats import ratio
from kernelproof.types import Contestant, Series, Timing

# The fastest alternative in PyTorch, by results/h200/*-operators.json.
BASELINE = {
    "mla_kv": "two matmuls", "gated_recurrence": "chunked", "int8_attention": "dequantised_sdpa",
}  # fmt: skip
ROUNDS, SECONDS = 10, 15.0
_OTHER = "does not compute the same function"


def progress(what: str, done: int, total: int) -> None:
    print(f"{time.perf_counter():8.1f} s  {what} ({done} of {total})", file=sys.stderr, flush=True)


def race(
    rungs: Sequence[ladder.Rung], seed: int, keep: Callable[[Timing], None], device: str = "cuda"
) -> Timing:
    """The timing of ``rungs`` of one problem on its first case: of the last one, beside eager, the
    best baseline, and the others under their names.

    Args:
        keep: takes the timing before its outputs are looked at, which can take longer than it.

    Raises:
        KernelproofError: the last one does not pass there.
    """
    reference = problems.load(rungs[-1].problem)
    case = reference.problem.cases[0]
    options = Options(
        level="quick", seeds=1, seed=seed, cases=(case.name,), rounds=ROUNDS, seconds=SECONDS,
        build_timeout=60.0, call_timeout=40.0,
    )  # fmt: skip
    beside = chosen(reference, case, device, ("eager", BASELINE[reference.problem.name]))
    hides = (reference.problem.path,)
    rivals = [Rival(r.name, candidates.load(r.candidate), hides) for r in rungs[:-1]]
    what = contestants.Race(reference, case, device, seed, beside, rivals, options)
    mine = candidates.load(candidates.find(reference.problem.path, rungs[-1].candidate))
    physics.prepare(device, lambda: None, progress)
    payload = payload_of(reference, case, seed)
    with (
        Ahead(device, many_processors()) as ahead,
        contestants.Field(what, payload, seed, ahead) as field,
        CandidateProcess(mine, device, options) as subject,
    ):
        plan = Plan(
            seeds=(seed,), device=device, evidence="cpu" if device == "cpu" else "device",
            cases=(case.name,),
        )  # fmt: skip
        verdict = check(reference, subject, plan, progress)
        timing = None
        if verdict.status == "pass":
            unjudged, measured = timed.measured(field, subject, progress)
            keep(unjudged)
            verdict, timing = timed.judged(
                field, subject, verdict, unjudged, measured, progress
            )  # fmt: skip
    if timing is None:
        raise KernelproofError(f"{rungs[-1].name} is {verdict.status}: {verdict.message}")
    return timing


def of_rung(timing: Timing, name: str, last: str) -> tuple[Timing | None, bool]:
    """What a `race` tells of the rung ``name``, as a timing of its own beside the two baselines,
    None where it could not be timed; and whether what it computed while timed was right. ``last``:
    the rung that was the candidate."""
    known = {one.name: one for one in timing.baselines}
    eager, best = timing.baselines[:2]
    mine = timing.candidate if name == last else known.get(name)
    if mine is None:
        return None, True
    notes = tuple(n for n in timing.notes if n.split(":")[0].split(" does")[0] not in known)
    own = tuple(n for n in timing.notes if n.startswith((f"{name}:", f"{name} does")))
    right = not any(n.startswith(f"{name} {_OTHER}") for n in own)
    series = mine.device or mine.host
    if series is None:
        return None, right
    limit = timing.limit
    if limit is not None:
        share = limit.seconds / series.median
        limit = limit.model_copy(update={"share": share, "suspicious": ""})
    return timing.model_copy(
        update={
            "candidate": mine, "baselines": (eager, best), "ratios": (), "limit": limit,
            "notes": (*notes, *own),
        }
    ), right  # fmt: skip


def row(timing: Timing, right: bool | None) -> dict[str, Any]:
    """Medians in seconds of one rung and what it was timed beside: fields of `RungResult`."""
    eager, best = timing.baselines
    known = {"rung": timing.candidate, "eager": eager, "baseline": best, "floor": timing.floor}
    series = _main(timing.candidate)
    ratios = [_beside(one, timing) for one in (eager, best)]
    # Intervals to all others say nothing of this one.
    notes = [note.split("; not yet narrow")[0] for note in timing.notes]
    problem = timing.candidate.problem
    return {
        "times": {name: _medians(one) for name, one in known.items() if one is not None},
        "interval": [series.low, series.high] if series is not None else None,
        "rounds": max(series.rounds) + 1 if series is not None else 0,
        "baseline": best.name,
        "ratios": [found for found in ratios if found is not None],
        "right_when_timed": right,
        "time_notes": [*notes, *([problem] if problem else [])],
        "limit": timing.limit.bounds[0].model_dump() if timing.limit is not None else None,
        "limit_share": timing.limit.share if timing.limit is not None else None,
    }


def _medians(one: Contestant) -> dict[str, float | None]:
    found = {clock: getattr(one, clock) for clock in ("device", "host", "cold")}
    return {clock: s.median if s is not None else None for clock, s in found.items()}


def _beside(other: Contestant, timing: Timing) -> dict[str, Any] | None:
    mine, theirs = _main(timing.candidate), _main(other)
    if mine is None or theirs is None:
        return None
    got = ratio(theirs, mine, timing.throttled)
    return {
        "baseline": other.name, "clock": "device" if timing.candidate.device else "host",
        "ratio": got.middle, "low": got.low, "high": got.high, "answer": got.answer,
    }  # fmt: skip


def _main(one: Contestant) -> Series | None:
    return one.device or one.host
