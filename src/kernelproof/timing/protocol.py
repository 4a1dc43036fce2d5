"""Candidate and baselines in one interleaved run.

In each round every contestant is timed once, in random order, so that drifting clocks, heat and
other load fall on all alike. All samples are kept.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from kernelproof.errors import CandidateError
from kernelproof.timing.stats import ratio, series
from kernelproof.types import Contestant, Progress, Ratio, Series, Timing, silent

# On a CPU every call is a sample of its own, on inputs of its own, and all samples are stored.
_MOST_READINGS = 50

Clock = Literal["device", "host"]


class Timed(Protocol):
    """Something that can be timed, wherever it runs; times in seconds."""

    def prepare(self) -> dict[str, Any]:
        """First call, warm-up, graph capture: ``first``, ``host``, ``graph``, ``problem``."""

    def sample(self, clock: Clock, calls: int, number: int) -> list[float]:
        """Readings of ``clock`` over about ``calls`` calls, in round ``number``."""


@dataclasses.dataclass(frozen=True)
class Entrant:
    """A named contestant."""

    name: str
    subject: Timed


@dataclasses.dataclass(frozen=True)
class Budget:
    """``rounds`` at most and at least ``least``; no new round after ``seconds``; about ``slice``
    seconds for one contestant in one round."""

    rounds: int = 30
    least: int = 7
    seconds: float = 20.0
    slice: float = 0.02


class _Running:
    """A contestant during the run."""

    def __init__(self, entrant: Entrant, cuda: bool) -> None:
        self.name = entrant.name
        self.subject = entrant.subject
        self.cuda = cuda
        self.problem = ""
        self.first: float | None = None
        self.clocks: list[Clock] = []
        self.per_call = 0.0
        self.samples: dict[Clock, list[float]] = {"device": [], "host": []}
        self.rounds: dict[Clock, list[int]] = {"device": [], "host": []}
        try:
            facts = self.subject.prepare()
        except CandidateError as error:
            self.problem = error.message
            return
        self.first = float(facts["first"])
        self.per_call = max(float(facts["host"]), 1e-7)
        self.problem = str(facts["problem"])
        self.clocks = ["host", "device"] if facts["graph"] else ["host"]

    def take(self, number: int, seconds: float) -> None:
        if not self.clocks:
            return
        most = 2000 if self.cuda else _MOST_READINGS
        calls = max(1, min(most, round(seconds / self.per_call)))
        for clock in self.clocks:
            count = calls if clock == "host" else max(calls, 150)
            try:
                readings = self.subject.sample(clock, count, number)
            except CandidateError as error:
                self.problem, self.clocks = error.message, []
                return
            if clock == "host":
                # The first estimate may have come while others had the cores.
                self.per_call = max(1e-7, min(self.per_call, statistics.median(readings)))
            self.samples[clock] += readings
            self.rounds[clock] += [number] * len(readings)

    def result(self, cuda: bool) -> Contestant:
        host, device = self._series("host"), self._series("device")
        return Contestant(
            name=self.name,
            host=host,
            # Without a GPU the two are one: the call is the computation.
            device=device if cuda else host,
            first_call=self.first,
            problem=self.problem,
        )

    def _series(self, clock: Clock) -> Series | None:
        if not self.samples[clock]:
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
    order = random.Random(seed)
    first_round = time.perf_counter()
    for number in range(budget.rounds):
        if number >= budget.least and time.perf_counter() - first_round > budget.seconds:
            break
        progress("time", number, budget.rounds)
        for one in order.sample(running, len(running)):
            one.take(number, budget.slice)
    results = [one.result(cuda) for one in running]
    others = results[1 : 1 + len(baselines)]
    return Timing(
        case=case,
        device=device,
        threads=threads,
        candidate=results[0],
        baselines=tuple(others),
        floor=results[-1] if floor is not None else None,
        ratios=tuple(r for other in others for r in _ratios(results[0], other, cuda)),
        flops=flops,
        bytes=nbytes,
        seconds=time.perf_counter() - started,
    )


def _ratios(candidate: Contestant, other: Contestant, cuda: bool) -> list[Ratio]:
    found = []
    clocks: tuple[Clock, ...] = ("device", "host") if cuda else ("host",)
    for clock in clocks:
        mine, theirs = getattr(candidate, clock), getattr(other, clock)
        if mine is not None and theirs is not None:
            middle, low, high, answer = ratio(theirs, mine)
            found.append(
                Ratio(
                    baseline=other.name, clock=clock, ratio=middle, low=low, high=high,
                    answer=answer,
                )
            )  # fmt: skip
    return found
