"""A run of a suite: what was asked for, and what came of each item."""

from __future__ import annotations

import datetime
from typing import Any, Literal

from kernelproof.types.base import Frozen, Status
from kernelproof.types.timing import Ratio

# Beside the statuses of a verdict: `missing`, the suite has no candidate for the problem; `lost`,
# the process that judged it died several times; `fault`, an error of kernelproof's own.
ItemStatus = Status | Literal["missing", "lost", "fault"]


class SuiteRun(Frozen):
    """How a suite is judged. ``path``, ``format``, ``level`` and ``candidates`` are what it was
    loaded from, so that a run can be resumed by its id alone. ``options``: fields of
    `options.Options` that are not the default, as JSON has them. ``count``: items."""

    id: str
    created: datetime.datetime
    suite: str
    format: str
    path: str
    candidates: str | None
    level: int | None
    timed: bool
    options: dict[str, Any]
    count: int


class Means(Frozen):
    """Mean seconds per call of a baseline and of the candidate, by one clock: what KernelBench
    divides. On a GPU its clock is closest to `single`; see `Contestant`."""

    clock: str
    baseline: float
    candidate: float


class Harness(Frozen):
    """What the harness that a suite comes from would say of the same runs. ``accepted``: None where
    it hangs on luck, or is not known. ``word``: how that harness calls it. ``reasons``: why, in
    plain words; also what it does not see."""

    accepted: bool | None
    word: str
    reasons: tuple[str, ...] = ()


class SuiteResult(Frozen):
    """What came of one item.

    ``digest``: of all that was judged, see `suite.model.Item.digest`. ``device``: the GPU or CPU
    by name, with the threads of the latter; results of different devices are never ranked together.
    ``proof``, ``compat``: the two verdicts, the latter by ``harness`` where the suite's format has
    one, else by the values. ``ratios``: to each baseline, by the main clock; ``means``: name of a
    baseline -> means. ``time``: seconds per call by the main clock, median and both ends of its
    interval. ``attempts``: processes that began it, 0 where there was nothing to judge. ``place``:
    which worker. ``record_id``: "" where there is no record.
    """

    item: str
    category: str
    problem: str
    sample: int
    digest: str
    status: ItemStatus
    message: str = ""
    proof: bool = False
    compat: bool = False
    harness: Harness | None = None
    device: str = ""
    ratios: tuple[Ratio, ...] = ()
    means: dict[str, Means] = {}
    time: tuple[float, float, float] | None = None
    seconds: float = 0.0
    attempts: int = 1
    place: str = ""
    record_id: str = ""


class FastP(Frozen):
    """fast_p at one ``p`` beside ``baseline``. ``theirs``: as KernelBench defines it, from the
    compat verdict and means; ``ours``: from the proof, where the ratio's whole interval lies above
    p; ``open``: those whose interval holds p."""

    baseline: str
    p: float
    theirs: float
    ours: float
    open: int


class Wins(Frozen):
    """How many timed items are faster than a baseline, and geometric means of their ratios.
    ``correct``: over those that were timed; ``faster``: over those of them above 1; ``kept``: over
    all items, where one without a time counts as 1, as if its baseline were kept. None: over
    nothing."""

    baseline: str
    faster: int
    same: int
    slower: int
    unclear: int
    correct: float | None
    correct_and_faster: float | None
    kept: float | None


class Tally(Frozen):
    """The numbers of some of the results: of one category, or all (""). ``statuses``: how many have
    each. ``wins`` and ``fast`` are of one device."""

    category: str
    count: int
    statuses: dict[str, int]
    compat: int
    wins: tuple[Wins, ...] = ()
    fast: tuple[FastP, ...] = ()


class DeviceNumbers(Frozen):
    """The numbers of what was judged on one device, all together and by category. ``device``: "" of
    what needed none."""

    device: str
    total: Tally
    categories: tuple[Tally, ...]


class SuiteState(Frozen):
    """A run with its results, in the order of their names, and its numbers by device. ``left``:
    items without a result."""

    run: SuiteRun
    results: tuple[SuiteResult, ...]
    left: int
    devices: tuple[DeviceNumbers, ...]


class ItemChange(Frozen):
    """An item of two runs that is not the same in both. ``what``: "status", "faster", "slower",
    "only in a", "only in b" or "candidate", which is another one then. ``a`` and ``b`` in words."""

    item: str
    what: str
    a: str
    b: str


class RunsCompared(Frozen):
    """Two runs. ``same``: items of both whose status is alike and whose times cannot be told apart;
    ``not_timed``: of those, the ones that were not timed on one device in both. ``notes``: what
    makes the two less comparable."""

    a: SuiteRun
    b: SuiteRun
    changes: tuple[ItemChange, ...]
    same: int
    not_timed: int
    notes: tuple[str, ...] = ()
