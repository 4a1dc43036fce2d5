"""What is kept of an item's judgement."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from kernelproof.report.text import main_clock, main_series, ratio_to
from kernelproof.suite.model import Item
from kernelproof.types import (
    Contestant,
    Harness,
    ItemStatus,
    Means,
    Record,
    Series,
    SuiteResult,
    Timing,
)

# What is judged again when a run is resumed: no fault of the candidate.
AGAIN: tuple[ItemStatus, ...] = ("lost", "fault")


def of_record(
    item: Item, digest: str, record: Record, answer: Mapping[str, Any], attempts: int, place: str
) -> SuiteResult:
    """The result of an item that has a record; ``answer`` is that of `judging.Judge`."""
    timing = record.timing
    plain = without_record(item, digest, record.status, record.verdict.message, attempts, place)
    update: dict[str, Any] = {
        "proof": record.verdict.proof,
        "compat": record.verdict.compat,
        "device": answer["device"],
        "seconds": answer["seconds"],
        "record_id": record.id,
    }
    if answer.get("harness") is not None:
        harness = Harness.model_validate(answer["harness"])
        update |= {"harness": harness, "compat": harness.accepted is True}
    if timing is not None:
        clock, series = main_clock(timing), main_series(timing.candidate, timing)
        found = (ratio_to(timing, one.name, clock) for one in timing.baselines)
        update["ratios"] = tuple(r for r in found if r is not None)
        update["means"] = _means(timing)
        if series is not None:
            update["time"] = (series.median, series.low, series.high)
    return plain.model_copy(update=update)


def without_record(
    item: Item, digest: str, status: ItemStatus, message: str, attempts: int = 1, place: str = ""
) -> SuiteResult:
    """The result of an item of which there is no record."""
    return SuiteResult(
        item=item.name, category=item.category, problem=str(item.problem), sample=item.sample,
        digest=digest, status=status, message=message, attempts=attempts, place=place,
    )  # fmt: skip


def _means(timing: Timing) -> dict[str, Means]:
    """By the clock of single calls where both have it, else by the main one."""
    found = {}
    for baseline in timing.baselines:
        for clock in ("single", main_clock(timing)):
            both = [_series(one, clock) for one in (baseline, timing.candidate)]
            if both[0] is not None and both[1] is not None:
                mean = [statistics.fmean(s.samples) for s in both if s is not None]
                found[baseline.name] = Means(clock=clock, baseline=mean[0], candidate=mean[1])
                break
    return found


def _series(one: Contestant, clock: str) -> Series | None:
    series: Series | None = getattr(one, clock)
    return series if series is not None and series.samples else None
