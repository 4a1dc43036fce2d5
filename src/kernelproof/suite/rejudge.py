"""Which verdicts of the harness that a suite comes from do not stand, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from kernelproof.suite import compat
from kernelproof.suite.formats import flashinfer, kernelbench
from kernelproof.suite.model import Item, Suite
from kernelproof.types import Harness, Record, SuiteResult

# What the proof says against a verdict: that a candidate which was accepted is not right, or that
# one which was refused is.
Change = Literal["overturned", "cleared"]


@dataclasses.dataclass(frozen=True)
class Rejudged:
    """One item. ``theirs``: the harness's word, ``source``: "published" where it is in the suite's
    own results, "compat" where it is what that harness would say of our runs. ``ours``: the status
    of the proof. ``change``: None where both agree, or one of them says nothing."""

    item: str
    theirs: str
    source: Literal["published", "compat"]
    ours: str
    change: Change | None
    reason: str
    record_id: str


def rejudged(
    suite: Suite, results: Sequence[SuiteResult], record_of: Callable[[str], Record]
) -> list[Rejudged]:
    """Every item that has a record, in the suite's order.

    Args:
        record_of: a record by its id.
    """
    by_name = {result.item: result for result in results if result.record_id}
    return [
        one(item, record_of(by_name[item.name].record_id), by_name[item.name].harness)
        for item in suite.items
        if item.name in by_name
    ]


def one(item: Item, record: Record, harness: Harness | None = None) -> Rejudged:
    """What became of the verdict on one item; ``harness``: of its result, where that has it."""
    said = _published(item)
    source: Literal["published", "compat"] = "published"
    found = harness or compat.verdict(item, record)
    if said is None:
        said, source = (found.accepted, found.word), "compat"
    accepted, word = said
    ours = record.verdict.status
    change: Change | None = None
    if accepted is True and ours in ("wrong", "cheat", "crash", "timeout"):
        change = "overturned"
    elif accepted is False and ours == "pass":
        change = "cleared"
    reason = record.verdict.message if change != "cleared" else "; ".join(found.reasons)
    if change == "cleared" and source == "published" and found.accepted is not False:
        # On our runs their own rule would take it: other inputs, another machine, another version.
        reason = f"its own rule says {found.word} on these runs"
    return Rejudged(item.name, word, source, ours, change, _first(reason), record.id)


def _first(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _published(item: Item) -> tuple[bool | None, str] | None:
    """(accepted, word) as the suite's own results have it; None where they have nothing."""
    about: dict[str, Any] = item.options.get("compat") or {}
    published = about.get("published")
    if not published:
        return None
    if about.get("format") == kernelbench.NAME:
        if not published.get("compiled"):
            return False, "not compiled"
        right = bool(published.get("correctness"))
        return right, "correct" if right else "incorrect"
    if about.get("format") == flashinfer.NAME:
        other = next((status for status in published.values() if status != "PASSED"), None)
        return other is None, other or "PASSED"
    return None


def text(found: Sequence[Rejudged]) -> str:
    """For a terminal: what does not stand, then counts."""
    lines = []
    for change, title in (
        ("overturned", "accepted there, and not right"), ("cleared", "refused there, and right"),
    ):  # fmt: skip
        rows = [one for one in found if one.change == change]
        if rows:
            lines.append(f"{change}: {title}")
            width = max(len(row.item) for row in rows)
            for row in rows:
                told = "" if row.source == "published" else " (by its rule)"
                lines.append(f"  {row.item:{width}}  {row.theirs}{told} -> {row.ours}")
                lines.append(f"  {'':{width}}  {row.reason}")
            lines.append("")
    count = {c: sum(one.change == c for one in found) for c in ("overturned", "cleared")}
    lines.append(
        f"{len(found)} judged again: {count['overturned']} overturned, {count['cleared']} cleared"
    )
    return "\n".join(lines)


def as_json(found: Sequence[Rejudged]) -> dict[str, Any]:
    """The same for programs, one of ``items`` each."""
    return {"items": [dataclasses.asdict(one) for one in found]}
