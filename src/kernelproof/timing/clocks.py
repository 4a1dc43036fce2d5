"""The parent's own clock against what a worker reports.

A worker's readings come from the process in which the candidate runs. What it says is compared with
what this process sees by itself: how long a request for many calls takes, and how long inputs take
to become outputs. The limits lie far outside of what noise does; an honest kernel is never near.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from kernelproof.types import Check, Clock, Contestant, Series, Timing

# Pairs of calls, of eager and of the candidate; fewer where eager takes so many seconds, beside
# which noise is small.
_PAIRS, _FEWER_PAIRS, _LONG_SECONDS = 8, 5, 20e-3
# Times (factor, and seconds on top) beyond which a disagreement is named, or counts as cheating.
_NAMED = (1.7, 50e-6)
_CHEAT = (3.0, 100e-6)
# Of the other contestant's interquartile range, what counts as noise of the machine.
_NOISE = 3.0
_UNEVEN = (10.0, 500e-6)
# Share of the time of all calls that the first of them must take to count as doing their work.
_BATCHED = 0.2
# What a saving must be to be looked for between inputs sent and outputs received, in seconds.
_LEAST_SAVING = 2e-3
# Share of the time of others in which a contestant's own processors may work, and processor seconds
# that are too few to tell anything.
_RESTS, _FEW_SECONDS = 0.2, 0.1
_PARENT = "parent's clock ({})"
_REPEATED = "new contents as quick as old"
# Times (factor, and seconds on top) by the device's clock. A graph of 50 calls on 8 inputs takes
# 1.3 times as long where a call on new ones takes 3 times as long.
_OF_GRAPH, _OF_CALLS = (1.25, 0.3e-6), (1.8, 3e-6)


def of_parent(
    clock: Clock, one: Contestant, mine: Mapping[int, float], theirs: Mapping[int, float]
) -> Check | None:
    """Whether the parent's clock leaves time per call that the worker does not report.

    Args:
        mine, theirs: by round, seconds per call by which a request outlasted the readings in its
            answer: of ``one``, and of a contestant that nobody doubts. The same inputs were sent
            and unpacked in both, so that what is left between them is work that was not timed.
    """
    series: Series | None = getattr(one, clock)
    differences = [mine[number] - theirs[number] for number in mine.keys() & theirs.keys()]
    if series is None or len(differences) < 5:
        return None
    # The lower quartile: other load on the machine comes and goes, hidden work is always there.
    hidden = sorted(differences)[len(differences) // 4]
    spread = statistics.quantiles(theirs.values(), n=4)
    noise = _NOISE * (spread[2] - spread[0])
    told = series.median
    if clock in ("cold", "single") and one.host is not None:
        # By events: what Python does in a call is in the host's time, which has a check of its own.
        told, hidden = max(told, one.host.median), max(0.0, hidden - one.host.median)
    check = _compared(_PARENT.format(clock), told, told + hidden, noise)
    if clock == "warm" and check.outcome == "fail":
        # Beside the repeated calls is one that was not timed, as it must be: no proof of a cheat,
        # but no time to be relied on either.
        return check.model_copy(update={"outcome": "note"})
    return check


def _compared(name: str, told: float, seen: float, noise: float) -> Check:
    words = f"the worker's clock says {_text(told)} per call, the parent's {_text(seen)}"
    seen -= noise
    if seen > _CHEAT[0] * told + _CHEAT[1]:
        return Check(name=name, outcome="fail", message=words)
    if seen > _NAMED[0] * told + _NAMED[1]:
        return Check(name=name, outcome="note", message=f"suspicious: {words}")
    return Check(name=name, outcome="pass")


def uneven(one: Contestant) -> bool:
    """Whether the first call of a round takes far more than the others. Only where calls are
    readings. Threads that have to be woken do that too: `batched` tells."""
    series = one.host
    rounds: dict[int, list[float]] = {}
    for sample, number in zip(series.samples, series.rounds, strict=True) if series else ():
        rounds.setdefault(number, []).append(sample)
    firsts = sorted(times[0] for times in rounds.values() if len(times) >= 3)
    if series is None or len(firsts) < 5:
        return False
    return firsts[len(firsts) // 4] > _UNEVEN[0] * series.median + _UNEVEN[1]


def batched(alone: Sequence[float], among: Sequence[float], calls: int) -> Check:
    """Whether the first call of many takes longer the more there are: it does their work.

    Args:
        alone: seconds of calls that were sent one at a time.
        among: seconds of the first of ``calls`` calls, whose inputs were sent together.
    """
    name = "calls do their own work"
    # The least of one against the middle of the other: threads that are woken slowly in some calls
    # and at once in others must not look like work.
    one, many = statistics.median(alone), min(among)
    if many > calls * _BATCHED * one:
        text = (
            f"a call whose inputs are sent alone takes {_text(one)}, the first of {calls} that are "
            f"sent together {_text(many)}: it does the work of others"
        )
        return Check(name=name, outcome="fail", message=text)
    return Check(name=name, outcome="pass")


_RESTS_NAME = "rests while others are timed"


def not_at_rest(names: Sequence[str]) -> Check:
    """A failed check where somebody has changed how the processes of ``names`` are scheduled: only
    the candidate has a reason to, and code that it does not know runs in them."""
    text = (
        f"priority or processors of the process of {', '.join(names)} were changed while it was "
        "timed, which slows it"
    )
    return Check(name=_RESTS_NAME, outcome="fail", message=text)


def at_rest(worked: float, went_by: float, usual: float) -> Check:
    """Whether the candidate let the others alone while they were timed.

    Args:
        worked: processor seconds that its processes took in the meantime.
        went_by: seconds for which others were timed.
        usual: processor seconds a second that ``eager`` takes while the candidate is timed.
    """
    name = _RESTS_NAME
    if worked > _FEW_SECONDS and worked > (_RESTS + usual) * went_by:
        text = (
            f"in the {_text(went_by)} in which others were timed the candidate's processes took "
            f"{_text(worked)} of processor time, which slows them: threads that wait for the next "
            "call must sleep"
        )
        return Check(name=name, outcome="fail", message=text)
    return Check(name=name, outcome="pass")


def saving(
    timing: Timing, candidate: Callable[[], object], eager: Callable[[], object]
) -> Check | None:
    """Whether the parent sees what the candidate claims to save beside ``eager``.

    Args:
        candidate, eager: send new inputs, wait for the output.

    Returns:
        None where the claim is too small to be seen between inputs sent and outputs received.
    """
    theirs = next((b.host for b in timing.baselines if b.name == "eager"), None)
    mine = timing.candidate.host
    if mine is None or theirs is None:
        return None
    if theirs.median - mine.median < _LEAST_SAVING:
        return None
    pairs = _PAIRS if theirs.median < _LONG_SECONDS else _FEWER_PAIRS
    slow, quick = _alternating((eager, candidate), pairs)
    # Other load may have slowed eager down while it was timed; no call takes longer than from
    # inputs sent to outputs received.
    claimed = min(theirs.median, statistics.median(slow)) - mine.median
    if claimed < _LEAST_SAVING:
        return None
    savings = sorted(a - b for a, b in zip(slow, quick, strict=True))
    name = "saving seen by the parent"
    # The upper quartile of the pairs: noise falls on both sides, and then some pairs show a saving.
    if savings[3 * len(savings) // 4] < claimed / 3:
        text = (
            f"by the workers' clocks a call saves {_text(claimed)} beside eager; from inputs sent "
            f"to outputs received it saves {_text(max(0.0, statistics.median(savings)))}"
        )
        return Check(name=name, outcome="fail", message=text)
    return Check(name=name, outcome="pass")


def _alternating(calls: Sequence[Callable[[], object]], pairs: int) -> list[list[float]]:
    """Seconds of each, after a first time that does not count."""
    taken: list[list[float]] = [[] for _ in calls]
    for number in range(pairs + 1):
        for call, times in zip(calls, taken, strict=True):
            started = time.perf_counter()
            call()
            if number:
                times.append(time.perf_counter() - started)
    return taken


def repeated(new: Sequence[float], seen: Sequence[float], cuda: bool) -> Check:
    """Seconds per call on contents that are new against contents that were there before.

    On a CPU only new contents are timed, and inputs in a cache are quicker for an honest kernel
    too: there it is a remark.
    """
    name, fresh, stale = _REPEATED, min(new), min(seen)
    factor, slack = _CHEAT if cuda else (10.0, 200e-6)
    if fresh > factor * stale + slack:
        text = (
            f"a call takes {_text(fresh)} on new contents and {_text(stale)} on contents that it "
            "has seen: results are kept by value"
        )
        return Check(name=name, outcome="fail" if cuda else "note", message=text)
    return Check(name=name, outcome="pass")


def unseen(clock: str, found: Sequence[tuple[float, float]]) -> Check:
    """Device seconds per call of a GPU on contents that are new, against the same contents again,
    when inputs are in L2 both times: an honest kernel takes as long.

    Args:
        clock: "device", of a graph whose calls go round the inputs several times, of which only the
            first is on new contents; or of calls on each inputs once.
    """
    fresh, stale = (min(seconds) for seconds in zip(*found, strict=True))
    factor, slack = _OF_GRAPH if clock == "device" else _OF_CALLS
    name = f"{_REPEATED} ({'graph' if clock == 'device' else 'calls'})"
    if not fresh <= factor * stale + slack:
        text = (
            f"by the device's clock a call takes {_text(fresh)} on new contents and {_text(stale)} "
            "on contents that it has seen: results are kept by value"
        )
        return Check(name=name, outcome="fail", message=text)
    return Check(name=name, outcome="pass")


def without_warm(timing: Timing, checks: Sequence[Check]) -> Timing:
    """``timing`` without the candidate's times of repeated calls, where they were found to be so
    much quicker than calls on new contents that results may have been kept, or than the parent's
    clock says."""
    doubts = (_REPEATED, _PARENT.format("warm"))
    found = [check.name for check in checks if check.outcome == "note" and check.name in doubts]
    if not found or timing.candidate.warm is None:
        return timing
    note = f"{timing.candidate.name} has no time of repeated calls: see {found[0]!r}"
    return timing.model_copy(
        update={
            "candidate": timing.candidate.model_copy(update={"warm": None}),
            "ratios": tuple(r for r in timing.ratios if r.clock != "warm"),
            "notes": (*timing.notes, note),
        }
    )


def _text(seconds: float) -> str:
    return f"{seconds:.3g} s"
