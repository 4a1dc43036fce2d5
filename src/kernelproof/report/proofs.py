"""A verification as plain text: the answer first, then why, then what was looked at."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.report import units
from kernelproof.types import TimeChange, Verification

_WORDS = {
    "SAME VERDICT": "judged here again, it gets the verdict of the proof",
    "DIFFERENT": "judged here again, it gets another verdict than in the proof",
    "NOT VERIFIED": "this machine cannot repeat the verdict",
    "EDITED": "this is not the proof that was written",
}


def verification(found: Verification) -> str:
    """All of it, at most ``units.WIDTH`` columns wide."""
    return "\n".join(_lines(found))


def _lines(found: Verification) -> Iterator[str]:
    yield f"{found.answer}: {_WORDS[found.answer]}"
    for reason in found.reasons:
        yield from units.wrapped(f"- {units.one_line(reason)}", "  ", hanging=2)
    if found.sha256:
        yield f"\nsha256   {found.sha256}"
    if found.made is not None:
        facts = units.environment_facts(found.made)
        yield from units.wrapped(f"made on  {', '.join(facts)}", hanging=9)
    rows = [(f"seen     {text}") for text in found.verified]
    rows += [(f"unseen   {text}") for text in found.unverified]
    rows += [f"note     {units.one_line(text)}" for text in found.notes]
    for one in found.reruns:
        rows.append(f"again    {one.seeds} seeds: {one.status}, evidence {one.evidence}")
        rows += [f"         {units.one_line(text)}" for text in one.notes]
    for row in rows:
        yield from units.wrapped(row, hanging=9)
    yield from _times(found)


def _times(found: Verification) -> Iterator[str]:
    if not found.times:
        if found.no_times:
            yield f"times    not compared: {found.no_times}"
        return
    yield "\ntime per call, median [95 % interval of one run]"
    rows = [["", "in the proof", "here", "here / then", "intervals"]]
    rows += [_row(one) for one in found.times]
    yield from units.table(rows, "<<<><", indent="  ")


def _row(one: TimeChange) -> list[str]:
    return [
        units.one_line(one.name),
        units.seconds_interval(*one.then),
        units.seconds_interval(*one.now),
        units.ratio(one.now[0] / one.then[0]),
        "overlap" if one.overlap else "apart",
    ]
