"""What `prove` writes, and what `verify` finds of it somewhere else."""

from __future__ import annotations

import datetime
from typing import Literal

from kernelproof.types.base import Clock, Evidence, Frozen, Level, Status
from kernelproof.types.record import Environment, Record

Answer = Literal["SAME VERDICT", "DIFFERENT", "NOT VERIFIED", "EDITED"]


class Sources(Frozen):
    """A problem or a candidate with its files. ``digest`` is that of the record, ``entry`` the
    module in ``files`` (relative name -> text); ``binary``: files that are no UTF-8 text, in
    base64. ``is_folder``: whether the candidate is a folder. ``shipped``: where in the package the
    entry lies, for an operator's own kernel, which runs only as a part of the package."""

    name: str
    digest: str
    entry: str
    files: dict[str, str]
    binary: dict[str, str] = {}
    is_folder: bool = False
    shipped: str = ""


class Request(Frozen):
    """How a record was asked for: the fields of `options.Options` that decide what is judged."""

    level: Level = "default"
    seeds: int = 5
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    shrink_to: int | None = None
    baselines: tuple[str, ...] | None = None
    call_timeout: float = 60.0
    rounds: int = 160
    seconds: float = 10.0
    training: bool = False


class Proof(Frozen):
    """A record with all that is needed to make it again. ``format``: of the file.

    ``inspection_note``: why there is no inspection, where there is none.
    """

    format: Literal[1] = 1
    created: datetime.datetime
    kernelproof: str
    request: Request
    problem: Sources
    candidate: Sources
    record: Record
    inspection_note: str = ""


class Rerun(Frozen):
    """A proof's candidate judged again, with the ``seeds`` of the proof or with fresh, secret ones.
    ``differences``: from the proof's verdict; none where it is the same. ``notes``: differences
    that do not change the verdict."""

    seeds: Literal["same", "fresh"]
    evidence: Evidence
    status: Status
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    record: Record


class TimeChange(Frozen):
    """The time per call of one contestant in the proof and here, in seconds: median and both ends
    of its 95 % interval. ``overlap``: whether the intervals do."""

    name: str
    clock: Clock
    then: tuple[float, float, float]
    now: tuple[float, float, float]
    overlap: bool


class Verification(Frozen):
    """What came of a verification. ``reasons``: for any answer but SAME VERDICT. ``times`` or, in
    ``no_times``, why they are not compared. ``verified``, ``unverified``: what this machine could
    and could not look at."""

    file: str
    answer: Answer
    sha256: str = ""
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()
    reruns: tuple[Rerun, ...] = ()
    times: tuple[TimeChange, ...] = ()
    no_times: str = ""
    made: Environment | None = None
    here: Environment | None = None
