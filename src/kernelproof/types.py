"""The values that stages hand to each other, in the order in which they arise.

    Problem -> Candidate -> Build -> Verdict -> Timing -> Inspection -> Environment -> Record

All are frozen pydantic models made of plain data, so that each can be stored, sent to another
process and compared. Times are in seconds, sizes in bytes. No module but this one and `errors` is
shared between stages.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, model_validator

Status = Literal["pass", "wrong", "cheat", "compile_error", "crash", "timeout", "unsupported"]
Outcome = Literal["pass", "fail", "note", "skip"]
Evidence = Literal["device", "emulated", "interpreted", "compiled", "cpu", "none"]
# How much is checked beyond the declared cases; see docs/verdict.md.
Level = Literal["quick", "default", "thorough"]
Comparison = Literal["FASTER", "SAME", "SLOWER", "UNCLEAR"]
# What a time per call is of; see docs/timing.md.
Clock = Literal["device", "host", "cold", "single", "warm"]


# A stage reports (what it does, steps done, steps in all); whoever called decides what to show.
Progress = Callable[[str, int, int], None]


def silent(what: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


def _parse_real(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def _dump_real(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


# JSON has no NaN and no infinity; both do occur in error figures, and they must survive a record.
Real = Annotated[float, BeforeValidator(_parse_real), PlainSerializer(_dump_real, when_used="json")]


class Frozen(BaseModel):
    """Base of all values: immutable, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _dump_sizes(sizes: dict[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, list, tuple, dict, type(None))
    return {key: v if isinstance(v, plain) else str(v) for key, v in sizes.items()}


class Case(Frozen):
    """One named set of keyword arguments of the problem's ``get_inputs``.

    In JSON, values that JSON lacks (a ``torch.dtype``) stand as text.
    """

    name: str
    sizes: Annotated[dict[str, Any], PlainSerializer(_dump_sizes, when_used="json")] = {}


class Problem(Frozen):
    """A reference module on disk. ``digest`` is the hash of its source; ``sizes`` are the
    module-level constants that were given other values."""

    name: str
    path: str
    digest: str
    sizes: dict[str, int | tuple[int, ...]] = {}
    cases: tuple[Case, ...]
    atol: float | None = None
    rtol: float | None = None
    baselines: tuple[str, ...] = ()
    doc: str = ""


class Candidate(Frozen):
    """A candidate on disk. ``digest`` covers every source in ``sources`` (relative names)."""

    name: str
    path: str
    folder: str
    language: str
    digest: str
    sources: tuple[str, ...]


class Build(Frozen):
    """What came of importing and constructing the candidate. ``confinement``: the limits that
    were on its process, one line each; see docs/trust.md."""

    status: Status
    seconds: float
    message: str = ""
    detail: str = ""
    weights: str = ""
    log: str = ""
    confinement: tuple[str, ...] = ()


class Figures(Frozen):
    """Error of one output against the float64 oracle.

    ``max_abs``, ``mean_abs``, ``rms``: absolute, in the output's own units. ``max_rel``: largest
    error over the magnitude of its truth. ``max_ulp``: largest error in units in the last place of
    the output's dtype. ``effective_bits``: -log2(rms error / rms truth); 24 is perfect fp32.
    """

    max_abs: Real
    mean_abs: Real
    rms: Real
    max_rel: Real
    max_ulp: Real
    effective_bits: Real


class OutputVerdict(Frozen):
    """Judgement of one output tensor in one run."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    passed: bool
    compat: bool
    figures: Figures | None = None
    reference: Figures | None = None
    ratio_rows: Real = 0.0
    ratio_all: Real = 0.0
    looks_like: str = ""
    wrong: int = 0
    worst_index: tuple[int, ...] = ()
    worst_got: Real = 0.0
    worst_expected: Real = 0.0
    message: str = ""


class Check(Frozen):
    """Outcome of one guard or property; ``note`` informs and never fails a candidate."""

    name: str
    outcome: Outcome
    message: str = ""


class Variant(Frozen):
    """How a run's inputs differ from the case as declared; see docs/verdict.md.

    ``family``: of values, of which ``version`` says how many inputs it left out. ``layout``: of
    their storage. ``sizes``: module-level constants with other values.
    """

    family: str = ""
    version: int = 0
    layout: str = ""
    sizes: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """Such as "large, offset"; "" as declared."""
        sizes = (f"{name}={value}" for name, value in self.sizes.items())
        return ", ".join(word for word in (self.family, self.layout, *sizes) if word)


class Call(Frozen):
    """What a candidate was called with: a declared case, a seed, and what was varied."""

    case: str
    seed: int
    variant: Variant = Variant()

    @property
    def name(self) -> str:
        """Such as "founding" or "founding [large]"."""
        label = self.variant.label
        return f"{self.case} [{label}]" if label else self.case


class Run(Call):
    """One call, and how it was judged."""

    status: Status
    outputs: tuple[OutputVerdict, ...] = ()
    message: str = ""


class Verdict(Frozen):
    """Is it the same function? ``proof`` and ``compat`` are the two verdicts of docs/verdict.md.

    ``smallest``: the sizes of the smallest case found to fail. ``failing``: the call
    that decided, also where it gave no run because it broke. ``fingerprint``: hash of the
    bits of the last run's outputs, by which a reproducer knows them again.
    """

    status: Status
    proof: bool
    compat: bool
    evidence: Evidence
    device: str
    limit: float
    message: str = ""
    detail: str = ""
    runs: tuple[Run, ...] = ()
    checks: tuple[Check, ...] = ()
    looks_like: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    smallest: Case | None = None
    failing: Call | None = None
    fingerprint: str = ""

    @model_validator(mode="after")
    def _pass_means_proof(self) -> Verdict:
        if (self.status == "pass") != self.proof:
            raise ValueError(f"status {self.status!r} does not go with proof={self.proof}")
        return self


class LibraryUse(Frozen):
    """``share`` of one call's time (0 to 1) in operators of PyTorch and in kernels of vendor
    libraries, their ``names``, and the language in which the candidate ``claims`` to compute."""

    share: float
    names: tuple[str, ...] = ()
    claims: str = ""


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


class Launch(Frozen):
    """How a kernel was launched, ``count`` times alike. ``grid`` in blocks, ``block`` in threads,
    ``shared`` bytes of dynamic shared memory; ``dtypes`` of the tensors it was given. ``opted_in``:
    whether the launch asks for more than 48 KiB where it needs it; None where that is not known."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    cluster: tuple[int, int, int] | None = None
    count: int = 1
    dtypes: tuple[str, ...] = ()
    opted_in: bool | None = None


class InstructionMix(Frozen):
    """Instructions of a kernel by class, as written and ``in_loops`` only; see docs/inspect.md."""

    total: int
    counts: dict[str, int]
    loops: int
    in_loops: dict[str, int]


class KernelFacts(Frozen):
    """One kernel: its resources, and with a launch its occupancy on the GPU of the inspection.

    Bytes throughout. ``spill_stores``, ``spill_loads``: None where the cubin does not tell (see
    ``spills_from``; likewise ``instructions_from``). ``local_accesses``: instructions on local
    memory that are not spills. ``max_threads``: of a block, as declared. ``occupancy``: resident
    warps over the most that a multiprocessor holds, at ``threads`` per block (of the launch, else
    ``max_threads``); ``limits``: blocks per multiprocessor that each resource allows.
    ``seconds``: device time of the launches of one call, where a profiler has run; ``counters``: of
    one launch, by the name that NVIDIA's profiler gives them, in its base units.
    """

    name: str
    symbol: str
    registers: int
    spill_stores: int | None
    spill_loads: int | None
    shared_bytes: int
    stack_bytes: int
    occupancy: float | None = None
    limiter: str = ""
    limits: dict[str, int] = {}
    threads: int | None = None
    blocks_per_multiprocessor: int | None = None
    warps_per_multiprocessor: int | None = None
    spills_from: str = ""
    instructions_from: str = ""
    local_accesses: int | None = None
    constant_bytes: int = 0
    barriers: int = 0
    max_threads: int | None = None
    code_bytes: int = 0
    compiler: str = ""
    launch: Launch | None = None
    instructions: InstructionMix | None = None
    seconds: float | None = None
    counters: dict[str, float] = {}
    sentences: tuple[str, ...] = ()


class Finding(Frozen):
    """What a tool said: of ``tool`` (such as "memcheck"), ``kind`` of error, how often, where."""

    tool: str
    kind: str
    count: int
    kernel: str = ""
    where: str = ""
    message: str = ""


class Inspection(Frozen):
    """What holds the kernels of a candidate back on ``gpu``. ``tools``: those of NVIDIA that ran,
    with their outcome. ``sentences``: about the call."""

    gpu: str
    arch: str
    multiprocessors: int
    kernels: tuple[KernelFacts, ...]
    case: str = ""
    sentences: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    tools: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class Environment(Frozen):
    """The machine and software a record was made with."""

    kernelproof: str
    commit: str
    python: str
    torch: str
    platform: str
    cpu: str
    cores: int
    threads: int
    compiler: str
    gpu: str = ""
    gpu_driver: str = ""
    cuda: str = ""
    capability: str = ""
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    versions: dict[str, str] = {}


class SweepPoint(Frozen):
    """Which run of a sweep over sizes a record is: ``name`` has ``value`` in it; ``id`` is that of
    the sweep."""

    id: str
    name: str
    value: int


class Record(Frozen):
    """One judgement, complete. Cannot hold a timing without a passing verdict.

    ``seed`` is what `--seed` takes to draw ``seeds``, those of the inputs, again. ``reproducer``:
    for a candidate that failed, the text of a script in plain PyTorch that shows it.
    ``uses_library_kernels``: of a candidate that passed, where its time is spent. ``sweep``: of a
    record that is one of a series over sizes, which.
    """

    id: str
    created: datetime.datetime
    problem: Problem
    candidate: Candidate
    build: Build
    verdict: Verdict
    timing: Timing | None = None
    inspection: Inspection | None = None
    environment: Environment
    seed: int = 0
    seeds: tuple[int, ...] = ()
    reproducer: str = ""
    uses_library_kernels: LibraryUse | None = None
    sweep: SweepPoint | None = None

    @model_validator(mode="after")
    def _no_time_without_proof(self) -> Record:
        if self.timing is not None and self.verdict.status != "pass":
            raise ValueError(
                f"a record of status {self.verdict.status!r} cannot hold a timing: "
                "only a candidate that passed is timed"
            )
        return self

    @property
    def status(self) -> Status:
        return self.verdict.status
