"""The ladder of a session as HTML: session.html has the layout. The picture is drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from kernelproof.report import html, page, sessions, units
from kernelproof.types import Attempt, Record, SessionLog

# After number, call and status, and before the marks.
_HEAD = (
    "time", "eager / it", "answer", "bits", "error / honest", "registers", "spilled", "shared",
)  # fmt: skip
_ANSWER = _HEAD.index("answer")
_WIDTH, _HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _FOOT = 68, 12, 16, 34
_MOST_TICKS = 6


def render(log: SessionLog, records: Sequence[Record] = ()) -> str:
    """The whole page of a session; ``records`` of its attempts follow the ladder."""
    views = [html.record_view(number, record) for number, record in enumerate(records, 1)]
    filled = page.template("session_page.html").render(
        session=view(log),
        library=page.library(any(one["chart"] for one in views)),
        views=views,
        **html.HEADS,
    )
    return str(filled) + "\n"


def view(log: SessionLog, command: str = "") -> dict[str, Any]:
    """What session.html shows. ``command``: how to take the next step, in words."""
    state = log.session
    rows = [_row(one) for one in log.attempts]
    # What nothing is known of needs no column.
    told = [n for n in range(len(_HEAD)) if any(row["cells"][n] != units.MISSING for row in rows)]
    for row in rows:
        row["cells"] = [(row["cells"][n], n == _ANSWER) for n in told]
    return {
        "id": state.id,
        "problem": units.one_line(state.problem),
        "state": state.state,
        "budget": sessions.state_line(state).partition(": ")[2],
        "best": _best(log),
        "why": units.one_line(log.next.why),
        "command": command,
        "head": ("#", "call", "status", *(_HEAD[n] for n in told), ""),
        "rows": rows,
        "picture": page.markup(_picture(log.attempts)),
        "started": f"{state.created:%Y-%m-%d %H:%M} UTC",
    }


def _row(one: Attempt) -> dict[str, Any]:
    s = one.summary
    ratio, answer = units.ratio_cells(s.eager) if s.eager is not None else ("", "")
    worst = units.proof(s.worst, s.limit) if s.worst is not None and s.limit is not None else ""
    cells = [
        units.seconds_interval(*s.time) if s.time is not None else "", ratio.strip(),
        answer.strip(), units.bits(s.bits) if s.bits is not None else "", worst,
        "" if s.registers is None else str(s.registers),
        "" if s.spilled is None else f"{s.spilled} B", units.size(s.shared) if s.shared else "",
    ]  # fmt: skip
    return {
        "number": one.number,
        "what": one.what,
        "status": one.status or one.state,
        "cells": [cell or units.MISSING for cell in cells],
        "changed": units.one_line(one.changed),
        "note": "best" if one.best else "tied" if one.tied else "",
        "message": units.one_line(one.message) if one.status != "pass" else "",
        "diff": units.plain(one.diff),
        "record": one.record_id,
        "candidate": units.one_line(one.candidate),
    }


def _best(log: SessionLog) -> str:
    found = next((one for one in log.attempts if one.best), None)
    if found is None:
        return "nothing has passed yet" if log.attempts else "nothing has been tried yet"
    words = "the best" if log.session.state == "closed" else "the best so far"
    text = f"{words}: attempt {found.number}, {units.one_line(found.candidate)}"
    if found.summary.time is None:
        return f"{text}, not timed"
    text += f", {units.seconds_interval(*found.summary.time)}"
    if found.summary.eager is not None:
        ratio, answer = units.ratio_cells(found.summary.eager)
        text += f", eager / it {ratio.strip()}: {answer.strip()}"
    return text


def _picture(attempts: Sequence[Attempt]) -> str:
    """Time of each attempt with its interval on a log axis, crosses for what did not pass: drawn
    without a library, so that it can be replaced while somebody looks. Holds numbers only."""
    timed = [(one, t) for one in attempts if (t := one.summary.time) and 0 < t[0] < math.inf]
    if len(timed) < 2:
        return ""
    low = min(max(t[1], t[0] / 4) for _, t in timed)
    high = max(min(t[2], t[0] * 4) for _, t in timed)
    bottom, top = math.log10(low) - 0.1, math.log10(high) + 0.1

    def y(seconds: float) -> float:
        place = (math.log10(min(max(seconds, low), high)) - bottom) / (top - bottom)
        return _HEIGHT - _FOOT - place * (_HEIGHT - _FOOT - _TOP)

    span = _WIDTH - _LEFT - _RIGHT
    step = span / max(len(attempts), 1)
    places = {one.number: _LEFT + (n + 0.5) * step for n, one in enumerate(attempts)}
    parts = [
        f'<svg class="steps" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="time of each attempt; the table has the figures">'
    ]
    parts += _axis(10.0**bottom, 10.0**top, y)
    parts += _marks(attempts, places)
    path = " ".join(f"{places[one.number]:.1f},{y(t[0]):.1f}" for one, t in timed)
    parts.append(f'<polyline class="way" points="{path}"/>')
    for one, t in timed:
        x, kind = places[one.number], "best" if one.best else "other"
        parts.append(f'<path class="span" d="M{x:.1f} {y(t[1]):.1f}V{y(t[2]):.1f}"/>')
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y(t[0]):.1f}" r="5"/>')
    return "".join([*parts, "</svg>"])


def _axis(low: float, high: float, y: Any) -> Iterator[str]:
    """Lines at 1, 2 and 5 times powers of ten."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**power for power in range(first, last + 1)]
    ticks = [factor * power for power in powers for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    if len(ticks) > _MOST_TICKS:
        ticks = [power for power in powers if low <= power <= high]
    for tick in ticks:
        at = y(tick)
        yield f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>'
        yield (
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{units.seconds(tick)}</text>'
        )


def _marks(attempts: Sequence[Attempt], places: dict[int, float]) -> Iterator[str]:
    foot = _HEIGHT - _FOOT
    every = max(1, math.ceil(len(attempts) / 20))
    for index, one in enumerate(attempts):
        x = places[one.number]
        if index % every == 0 or one.best:
            yield f'<text x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{one.number}</text>'
        if one.status not in ("pass", None):
            box = f"M{x - 4:.1f} {foot - 8}l8 8m0 -8l-8 8"
            yield f'<path class="failed" d="{box}"/>'
