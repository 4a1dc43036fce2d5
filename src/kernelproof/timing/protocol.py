"""Candidate and baselines in one interleaved run.

In each round every contestant is timed once, in random order, so that drifting clocks, heat and
other load fall on all alike. A baseline whose ratio is known well enough is timed no more, and the
run ends with the last of them. All samples are kept.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from kernelproof.errors import CandidateError
from kernelproof.timing.conditions import Watch
from kernelproof.timing.stats import Estimate, ratio, series
from kernelproof.types import Clock, Contestant, Progress, Ratio, Series, Timing, silent

# On a CPU every call is a sample of its own, on inputs of its own, and all samples are stored.
_MOST_READINGS = 50
_MOST_CALLS = 2000
# Replays of a graph in one round: their median is one figure, so that more would tell little.
_MOST_REPLAYS = 5
# What a cold call takes beyond itself: L2 is flushed, and the GPU kept busy until all is queued.
_COLD_SECONDS = 4e-4
# From one look at the intervals to the next the rounds grow by this factor: the fewer looks there
# are, the less the choice of the moment can favour a narrow interval.
_NEXT_LOOK = 1.4
# On a machine that is so busy that the rounds take twice their time.
_FEWEST = 6
# Narrow enough for a time that stands beside no other.
_ALONE = 0.01


class Timed(Protocol):
    """Something that can be timed, wherever it runs; times in seconds."""

    def prepare(self) -> dict[str, Any]:
        """First call, warm-up, graph capture: ``first``, ``host``, ``graph`` (calls in it),
        ``problem``, and where they are known ``build`` and ``construction``."""

    def sample(self, clock: Clock, calls: int, number: int) -> list[float]:
        """Readings of ``clock`` over about ``calls`` calls, in round ``number``."""


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A named contestant."""

    name: str
    subject: Timed


@dataclasses.dataclass(frozen=True)
class Budget:
    """``rounds`` at most and at least ``least``, or ``far`` where every ratio is known by then to
    be above three or below a third; no new round after ``seconds``, which may be doubled for the
    least; about ``slice`` seconds for one contestant and clock in one round."""

    rounds: int = 160
    least: int = 10
    far: int = 8  # the fewest that have a 99 % interval
    seconds: float = 10.0
    slice: float = 0.02


class _Running:
    """A contestant during the run."""

    def __init__(self, entrant: Entrant, cuda: bool) -> None:
        self.name = entrant.name
        self.subject = entrant.subject
        self.cuda = cuda
        self.problem = ""
        self.facts: dict[str, Any] = {}
        self.clocks: list[Clock] = []
        self.per_call: dict[Clock, float] = {}
        self.samples: dict[Clock, list[float]] = {}
        self.rounds: dict[Clock, list[int]] = {}
        self.settled = False
        try:
            self.facts = self.subject.prepare()
        except CandidateError as error:
            self.problem = error.message
            return
        self.problem = str(self.facts["problem"])
        self.clocks = ["host", "warm"]
        if cuda:
            # The last two have inputs of their own; the first two share theirs.
            graph: list[Clock] = ["device"] if self.facts["graph"] else []
            self.clocks = ["host", *graph, "cold", "single"]

    def take(self, number: int, seconds: float) -> None:
        for clock in self.clocks:
            try:
                readings = self.subject.sample(clock, self._calls(clock, seconds), number)
            except CandidateError as error:
                self.problem, self.clocks = error.message, []
                return
            # Other load comes and goes; a sample that takes far longer ends by itself.
            taken = statistics.median(readings)
            self.per_call[clock] = min(self.per_call.get(clock, taken), taken)
            self.samples.setdefault(clock, []).extend(readings)
            self.rounds.setdefault(clock, []).extend([number] * len(readings))

    def _calls(self, clock: Clock, seconds: float) -> int:
        guess = max(float(self.facts["host"]), 1e-7)
        per_call = max(self.per_call.get("warm" if clock == "warm" else "host", guess), 1e-7)
        if clock == "device":
            graph = int(self.facts["graph"])
            replay = graph * max(self.per_call.get("device", per_call), 1e-7)
            return graph * max(1, min(_MOST_REPLAYS, round(seconds / replay)))
        if clock == "cold":
            per_call += _COLD_SECONDS
        most = _MOST_CALLS if self.cuda else _MOST_READINGS
        return max(1, min(most, round(seconds / per_call)))

    def result(self) -> Contestant:
        host, device = self.series("host"), self.series("device")
        return Contestant(
            name=self.name,
            host=host,
            # Without a GPU the two are one: the call is the computation.
            device=device if self.cuda else host,
            cold=self.series("cold"),
            single=self.series("single"),
            warm=self.series("warm"),
            build=self.facts.get("build"),
            construction=self.facts.get("construction"),
            first_call=self.facts.get("first"),
            problem=self.problem,
        )

    def series(self, clock: Clock) -> Series | None:
        if not self.samples.get(clock):
            return None
        return series(self.samples[clock], self.rounds[clock])


def measure(
    candidate: Entrant,
    baselines: Sequence[Entrant],
    floor: Entrant | None,
    *,
    case: str,
    device: str,
    threads: int,
    flops: float | None = None,
    nbytes: float | None = None,
    budget: Budget | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Timing:
    """Time all contestants on one case.

    Args:
        floor: the cheapest possible call on this device; timed like the others, never compared.
        flops, nbytes: of the case, stored beside the times.
        seed: of the order within rounds.
    """
    budget = budget or Budget()
    started = time.perf_counter()
    cuda = device != "cpu"
    running = []
    entrants = [candidate, *baselines, *([floor] if floor is not None else [])]
    for number, entrant in enumerate(entrants):
        progress(f"prepare {entrant.name}", number, len(entrants))
        running.append(_Running(entrant, cuda))
    last = running[-1] if floor is not None else None
    run = _Run(running[0], running[1 : 1 + len(baselines)], last, budget, Watch(device, threads))
    run.go(random.Random(seed), progress)
    results = [one.result() for one in running]
    others = results[1 : 1 + len(baselines)]
    left_out = run.left_out()
    return Timing(
        case=case,
        device=device,
        threads=threads,
        candidate=results[0],
        baselines=tuple(others),
        floor=results[-1] if floor is not None else None,
        ratios=tuple(r for o in others for r in _ratios(results[0], o, cuda, left_out)),
        flops=flops,
        bytes=nbytes,
        seconds=time.perf_counter() - started,
        notes=(*run.notes(), *run.watch.notes()),
        conditions=run.watch.conditions(),
        throttled=left_out,
    )


class _Run:
    """The rounds, until every ratio is known well enough or the budget ends."""

    def __init__(
        self, mine: _Running, others: list[_Running], floor: _Running | None, budget: Budget,
        watch: Watch,
    ) -> None:  # fmt: skip
        self.mine = mine
        self.others = others
        self.floor = floor
        self.budget = budget
        self.watch = watch
        self.done = 0
        self.ended = ""

    def go(self, draw: random.Random, progress: Progress) -> None:
        budget, began, look = self.budget, time.perf_counter(), self.budget.least
        for number in range(budget.rounds):
            taken = time.perf_counter() - began
            enough = number >= budget.least or (number >= _FEWEST and taken > 2 * budget.seconds)
            if taken > budget.seconds and enough:
                self.ended = f"the {budget.seconds:g} s for rounds were over"
                return
            progress("time", number, budget.rounds)
            racing = [self.mine, *(one for one in self.others if not one.settled)]
            if self.floor is not None and number < budget.least:
                racing.append(self.floor)
            self.watch.begin()
            for one in draw.sample(racing, len(racing)):
                one.take(number, budget.slice)
            self.watch.end(number)
            self.done = number + 1
            if self.done == budget.far < look and not self.watch.throttled():
                if self._narrow(far=True):
                    return
            elif self.done >= look:
                look = max(self.done + 1, round(look * _NEXT_LOOK))
                if self._narrow():
                    return
        self.ended = f"{budget.rounds} rounds, the most there may be, were over"

    def _narrow(self, far: bool = False) -> bool:
        """Whether all is known that is asked for; marks the baselines of which that is true, with
        ``far`` of those only whose ratio is."""
        for one in self.others:
            found = self._estimate(one)
            known = found is None or (found.narrow and (found.far or not far))
            one.settled = one.settled or known
        if self.others:
            return all(one.settled for one in self.others)
        if far:
            return False
        alone = self.mine.series("device") or self.mine.series("host")
        return alone is None or alone.high - alone.low < 2 * _ALONE * alone.median

    def _estimate(self, other: _Running) -> Estimate | None:
        """Of the ratio that the run goes on for: by the device's clock where both have it. None
        where there is none to be had."""
        for clock in _clocks(self.mine.cuda):
            mine, theirs = self.mine.series(clock), other.series(clock)
            if mine is not None and theirs is not None and other.clocks and self.mine.clocks:
                return ratio(theirs, mine, self.left_out())
        return None

    def left_out(self) -> tuple[int, ...]:
        """Throttled rounds, where enough others are left."""
        throttled = self.watch.throttled()
        return throttled if self.done - len(throttled) >= self.budget.least else ()

    def notes(self) -> list[str]:
        """Why the rounds ended, and that throttled ones count or do not."""
        if self.ended:
            words = [
                f"{one.name} (+-{found.half_width:.1%})"
                for one in self.others
                if not one.settled and (found := self._estimate(one)) is not None
            ]
            wide = f"; not yet narrow: the ratio to {', '.join(words)}" if words else ""
            notes = [f"timing ended after {self.done} rounds: {self.ended}{wide}"]
        else:
            notes = [f"timing ended after {self.done} rounds: the intervals are narrow"]
        throttled = self.watch.throttled()
        if throttled:
            kept = "left out of the ratios" if self.left_out() else "too many to leave them out"
            rounds = ", ".join(map(str, throttled[:10])) + (", .." if len(throttled) > 10 else "")
            notes.append(
                f"the GPU held its clocks back in {len(throttled)} of {self.done} rounds "
                f"({self.watch.reasons()}), {kept}: {rounds}"
            )
        return notes


def _clocks(cuda: bool) -> tuple[Clock, ...]:
    """Those of which there are ratios. Not ``single``: how long a launch takes on an idle GPU
    depends on who else was there, and 3 of 20 runs called a candidate beside itself FASTER or
    SLOWER (results/h200/2026-11-30-timing.json)."""
    return ("device", "host", "cold") if cuda else ("host", "warm")


def _ratios(
    candidate: Contestant, other: Contestant, cuda: bool, left_out: Collection[int]
) -> list[Ratio]:
    found = []
    for clock in _clocks(cuda):
        mine, theirs = getattr(candidate, clock), getattr(other, clock)
        if mine is None or theirs is None or not {*mine.rounds} & {*theirs.rounds} - {*left_out}:
            continue
        got = ratio(theirs, mine, left_out)
        found.append(
            Ratio(
                baseline=other.name, clock=clock, ratio=got.middle, low=got.low, high=got.high,
                answer=got.answer,
            )
        )  # fmt: skip
    return found
