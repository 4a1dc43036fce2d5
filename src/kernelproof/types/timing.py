"""What a timing finds: times, ratios, work, floors and conditions."""

from __future__ import annotations

import datetime
from typing import Literal

from kernelproof.types.base import (
    Clock,
    Comparison,
    Frozen,
)


class Series(Frozen):
    """Samples of one clock of one contestant, in seconds per call; the interval holds 95 %."""

    samples: tuple[float, ...]
    rounds: tuple[int, ...]
    median: float
    low: float
    high: float


class Contestant(Frozen):
    """One thing that was timed. ``device`` is the device time inside a CUDA graph, or on a CPU the
    same as ``host``; ``host`` the time per call as Python sees it. On a GPU ``cold`` is the device
    time of a call after L2 was flushed, ``single`` that of a call by itself, launch included; on a
    CPU ``warm`` is the time of a repeated call. ``build``, ``construction`` and ``first_call`` are
    seconds, once each. ``problem`` says why there is no time where there is none."""

    name: str
    host: Series | None = None
    device: Series | None = None
    cold: Series | None = None
    single: Series | None = None
    warm: Series | None = None
    build: float | None = None
    construction: float | None = None
    first_call: float | None = None
    problem: str = ""


class Ratio(Frozen):
    """Baseline time over candidate time (above 1: the candidate is faster), 95 % interval."""

    baseline: str
    clock: Clock
    ratio: float
    low: float
    high: float
    answer: Comparison


class Work(Frozen):
    """What a reference computes and must move on one case; docs/floors.md has the conventions.

    ``matrix``, ``vector``: FLOPs of matrix products and of everything else, by the dtype of their
    operands ("fp32", "bf16"). ``read``, ``written``: bytes of inputs, weights and outputs, each
    touched once. ``narrow``: dtypes of inputs below fp32, in which products may be made.
    ``unknown``: operators without a formula, whose FLOPs are in none of the figures.
    ``declared``: which figures are the problem's own, "flops" or "bytes".
    """

    matrix: dict[str, float]
    vector: dict[str, float]
    read: float
    written: float
    narrow: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> float:
        return sum(self.matrix.values()) + sum(self.vector.values())

    @property
    def bytes(self) -> float:
        return self.read + self.written


class Bandwidth(Frozen):
    """Streaming rates in bytes/s over a working set of ``size`` bytes; None: not measured.
    ``copied`` counts what is read and what is written."""

    size: int
    read: float | None
    write: float | None
    copied: float | None

    @property
    def best(self) -> float:
        return max(rate for rate in (self.read, self.write, self.copied) if rate is not None)


class Floors(Frozen):
    """Limits of one device, as measured on it. ``call``: seconds of an empty launch or call.
    ``matrix``, ``vector``: FLOP/s by dtype, of matrix products and of multiply-adds.
    ``cache``: bytes of its last cache. ``notes``: what could not be measured, and why."""

    device: str
    software: str
    threads: int
    measured: datetime.datetime
    seconds: float
    call: float
    cache: int
    bandwidth: tuple[Bandwidth, ...]
    matrix: dict[str, float]
    vector: dict[str, float]
    notes: tuple[str, ...] = ()


class Bound(Frozen):
    """One reason why a call takes at least ``seconds``: ``amount`` (bytes, FLOPs or 1 call) at
    ``rate`` a second."""

    kind: Literal["call", "memory", "matrix", "vector"]
    name: str
    seconds: float
    amount: float
    rate: float


class Limit(Frozen):
    """The physics floor of one case on one device: its ``bounds``, largest first, the ``share`` of
    the largest in the candidate's time (1: no faster call is possible), and, where the time lies
    below a bound by more than error allows, what is ``suspicious`` about it."""

    bounds: tuple[Bound, ...]
    share: float
    suspicious: str = ""

    @property
    def seconds(self) -> float:
        return self.bounds[0].seconds


class GpuState(Frozen):
    """A GPU right after round ``number``: clocks in MHz, degrees Celsius, watts; None where the
    driver does not tell. ``throttled``: why it held its clocks back during the round."""

    number: int
    sm_clock: int | None = None
    memory_clock: int | None = None
    temperature: int | None = None
    power: float | None = None
    throttled: tuple[str, ...] = ()


class Conditions(Frozen):
    """Under what the times were taken: threads, processors that may be used, load average (one
    minute) before and the highest during the rounds, and the GPU between rounds."""

    threads: int
    processors: tuple[int, ...] = ()
    load_before: float | None = None
    load_during: float | None = None
    gpu: tuple[GpuState, ...] = ()


class Timing(Frozen):
    """Times of the candidate and its baselines on one case, measured in one interleaved run.
    ``throttled``: rounds that are left out of the ratios."""

    case: str
    device: str
    threads: int
    candidate: Contestant
    baselines: tuple[Contestant, ...]
    floor: Contestant | None
    ratios: tuple[Ratio, ...]
    flops: float | None = None
    bytes: float | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    work: Work | None = None
    floors: Floors | None = None
    limit: Limit | None = None
    conditions: Conditions | None = None
    throttled: tuple[int, ...] = ()
