"""One judgement, complete."""

from __future__ import annotations

import datetime

from pydantic import model_validator

from kernelproof.types.base import (
    Frozen,
    Status,
)
from kernelproof.types.inspection import Inspection
from kernelproof.types.timing import Timing
from kernelproof.types.verdict import Build, Candidate, LibraryUse, Problem, Verdict


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
