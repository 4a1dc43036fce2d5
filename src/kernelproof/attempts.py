"""The ladder of a session: what each attempt changed, what came of it, which is the best."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

from kernelproof.store import Sessions
from kernelproof.store.sessions import aware
from kernelproof.types import Attempt, CallAnswer, Sources, Summary

_CONTEXT = 2
FIRST, SAME = "first attempt", "unchanged"


def ladder(kept: Sessions, rows: Sequence[Any]) -> tuple[tuple[Attempt, ...], int | None]:
    """Every call with what it changed, and the number of the best: the quickest that passed, or
    while none was timed the newest that passed."""
    cache: dict[str, Sources] = {}
    attempts = [_attempt(kept, rows, index, cache) for index in range(len(rows))]
    known: dict[str, Summary] = {}
    for one in attempts:
        if one.summary.registers is not None:
            known[one.digest] = one.summary
    attempts = [_with_resources(one, known.get(one.digest)) for one in attempts]
    passed = [a for a in attempts if a.status == "pass" and a.what in ("check", "bench", "submit")]
    timed = [a for a in passed if a.summary.time is not None]
    best = min(timed, key=_median, default=passed[-1] if passed else None)
    if best is None:
        return tuple(attempts), None
    marked = (
        a.model_copy(update={"best": a.number == best.number, "tied": _tied(a, best)})
        for a in attempts
    )
    return tuple(marked), best.number


def changed(kept: Sessions, rows: Sequence[Any], number: int) -> str:
    """What attempt ``number`` changed, in a few words."""
    index = next(i for i, row in enumerate(rows) if row.number == number)
    return _changed(kept, rows, index, {})[0]


def _attempt(kept: Sessions, rows: Sequence[Any], index: int, cache: dict[str, Sources]) -> Attempt:
    row = rows[index]
    words, diff = _changed(kept, rows, index, cache)
    seconds = None
    if row.ended is not None:
        seconds = (aware(row.ended) - aware(row.started)).total_seconds()
    empty = Attempt(
        number=row.number, what=row.what, state=row.state, started=aware(row.started),
        seconds=seconds, cost=0 if row.state == "refused" else row.cost, candidate=row.candidate,
        digest=row.digest, changed=words, diff=diff,
    )  # fmt: skip
    if row.state == "lost":
        return empty.model_copy(update={"message": "its process ended before it had an answer"})
    if row.state == "refused":
        return empty.model_copy(update={"message": row.body})
    if row.state == "running":
        return empty
    answer = CallAnswer.model_validate_json(row.body)
    return empty.model_copy(
        update={
            "status": answer.status, "message": answer.message, "summary": answer.summary,
            "record_id": answer.record_id,
        }
    )  # fmt: skip


def _changed(
    kept: Sessions, rows: Sequence[Any], index: int, cache: dict[str, Sources]
) -> tuple[str, str]:
    """Words and a unified diff beside the attempt before."""
    before = next((row for row in reversed(rows[:index]) if row.state != "refused"), None)
    if before is None:
        return FIRST, ""
    if before.sources == rows[index].sources:
        return SAME, ""
    old, new = (_sources(kept, row.sources, cache) for row in (before, rows[index]))
    words, lines = [], []
    for name, a, b in _pairs(old, new):
        diff = list(
            difflib.unified_diff(
                a.splitlines(), b.splitlines(), f"attempt {before.number}: {name}",
                f"attempt {rows[index].number}: {name}", n=_CONTEXT, lineterm="",
            )
        )  # fmt: skip
        more = sum(line.startswith("+") for line in diff[2:])
        less = sum(line.startswith("-") for line in diff[2:])
        words.append(f"{name} +{more} -{less}")
        lines += diff
    words += [f"{name} (binary)" for name in old.binary.keys() | new.binary.keys()
              if old.binary.get(name) != new.binary.get(name)]  # fmt: skip
    return ", ".join(words) or f"now called {new.name}", "\n".join(lines)


def _pairs(old: Sources, new: Sources) -> Iterator[tuple[str, str, str]]:
    """Files that differ: name, text before and after; a module of another name is the same file."""
    before, after = dict(old.files), dict(new.files)
    if old.entry != new.entry and old.entry in before and new.entry in after:
        before[new.entry] = before.pop(old.entry)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name, "") != after.get(name, ""):
            yield name, before.get(name, ""), after.get(name, "")


def _sources(kept: Sessions, key: str, cache: dict[str, Sources]) -> Sources:
    if key not in cache:
        cache[key] = Sources.model_validate_json(kept.sources(key))
    return cache[key]


def _with_resources(one: Attempt, known: Summary | None) -> Attempt:
    """With what another call learned of the same sources."""
    if known is None or one.summary.registers is not None:
        return one
    update = {name: getattr(known, name) for name in ("registers", "spilled", "shared")}
    return one.model_copy(update={"summary": one.summary.model_copy(update=update)})


def _median(one: Attempt) -> float:
    assert one.summary.time is not None
    return one.summary.time[0]


def _tied(one: Attempt, best: Attempt) -> bool:
    """Whether the times cannot be told apart: their intervals overlap."""
    a, b = one.summary.time, best.summary.time
    if a is None or b is None or one.number == best.number or one.status != "pass":
        return False
    return a[1] <= b[2] and b[1] <= a[2]
