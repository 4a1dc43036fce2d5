"""What a run over a ladder finds: a row for each rung."""

from __future__ import annotations

from kernelproof.types.base import Evidence, Frozen, Real, Status
from kernelproof.types.timing import Bound, Ratio


class Medians(Frozen):
    """Seconds per call by clock, as in `Contestant`."""

    device: float | None = None
    host: float | None = None
    cold: float | None = None


class KernelUse(Frozen):
    """What a kernel takes. ``shared_bytes``: static and dynamic, of a block. ``blocks`` of
    ``threads``: the launch of the founding case; None where it is not known. ``occupancy``: share
    of the warps of a multiprocessor, and its ``limiter``. ``sentences``: what holds it back."""

    name: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    blocks: int | None
    threads: int | None
    occupancy: float | None
    limiter: str | None
    blocks_per_sm: int | None
    sentences: tuple[str, ...] = ()


class RungResult(Frozen):
    """One rung in one form ("candidate" or "load_inline"); None or nothing where a step was not
    done.

    ``unexpected``: how the verdict differs from what it must be. ``case``: the one whose errors are
    shown. ``ratio``: the largest error over what an honest computation may make. ``build``: from
    import to the first result with nothing compiled before, ``build_seconds`` that of the check.
    ``times``: of "rung", "eager", "baseline" (the one called ``baseline``) and "floor";
    ``interval``: of the rung's main clock; ``right_when_timed``: whether what it computed then was
    right. ``ratios``: of those two over the rung. ``limit``: the largest bound on the work, of
    which ``limit_share`` was reached. ``walls``: how long each step took; ``faults``: of steps that
    gave nothing; ``commits``: of kernelproof, for steps done later than at that of the results.
    Times are in seconds.
    """

    problem: str
    rung: str
    form: str = "candidate"
    expected: Status | None = None
    status: Status | None = None
    unexpected: str = ""
    message: str = ""
    compat: bool | None = None
    evidence: Evidence = "none"
    looks_like: str = ""
    case: str = ""
    ratio: Real | None = None
    max_abs: Real | None = None
    bits: Real | None = None
    reference_max_abs: Real | None = None
    reference_bits: Real | None = None
    notes: tuple[str, ...] = ()
    build_seconds: float | None = None
    build: float | None = None
    kernels: tuple[KernelUse, ...] = ()
    sentences: tuple[str, ...] = ()
    times: dict[str, Medians] = {}
    interval: tuple[float, float] | None = None
    rounds: int = 0
    baseline: str = ""
    ratios: tuple[Ratio, ...] = ()
    right_when_timed: bool | None = None
    time_notes: tuple[str, ...] = ()
    limit: Bound | None = None
    limit_share: float | None = None
    walls: dict[str, float] = {}
    faults: dict[str, str] = {}
    commits: dict[str, str] = {}

    @property
    def device(self) -> float | None:
        """Seconds of device time."""
        return self.times["rung"].device if "rung" in self.times else None

    @property
    def holds(self) -> bool:
        """Wrong over all cases, and yet right in the one that was timed, by what it computed then
        or, where that was not looked at, by the case that the check has stopped at."""
        right = self.right_when_timed
        if right is None:
            right = self.case not in ("", "founding")
        return self.status == "wrong" and right and self.device is not None

    def over(self, baseline: str) -> Ratio | None:
        """The ratio of "eager", or of the best baseline, over this."""
        return next((r for r in self.ratios if r.baseline == baseline), None)


class LadderResults(Frozen):
    """The rows, and on what they were made; ``commit``: of kernelproof."""

    date: str
    commit: str
    torch: str
    machine: str
    cuda: str = ""
    driver: str = ""
    versions: dict[str, str] = {}
    rows: tuple[RungResult, ...]

    def of(self, problem: str) -> tuple[RungResult, ...]:
        """The rungs of a problem, in their own form."""
        return tuple(r for r in self.rows if r.problem == problem and r.form == "candidate")

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.problem for row in self.rows))
