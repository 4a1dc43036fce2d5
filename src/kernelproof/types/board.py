"""Records in order, and two records side by side."""

from __future__ import annotations

import datetime

from kernelproof.types.base import Comparison, Frozen
from kernelproof.types.timing import Ratio


class BoardRow(Frozen):
    """A candidate's place among the records of one problem (by content), case and device.
    ``rank``: shared by those whose ratios cannot be told from that of its first. ``ratio``: to the
    board's baseline. ``time``: seconds per call, median and both ends of its 95 % interval."""

    problem: str
    problem_digest: str
    case: str
    device: str
    rank: int
    candidate: str
    digest: str
    ratio: Ratio
    time: tuple[float, float, float]
    record_id: str
    created: datetime.datetime


class Side(Frozen):
    """One of two records, in words: name of a figure -> its text."""

    record_id: str
    candidate: str
    facts: dict[str, str]


class Compared(Frozen):
    """Two records. ``differs``: the facts that differ. ``faster``: whether ``b`` is FASTER or
    SLOWER than ``a`` by the ratio to a baseline that both were timed beside (SAME where their
    intervals overlap), and ``by``: which; ``why_not``: where that cannot be told."""

    a: Side
    b: Side
    differs: tuple[str, ...]
    faster: Comparison | None = None
    by: str = ""
    why_not: str = ""
