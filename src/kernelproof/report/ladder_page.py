"""A ladder as one HTML page that needs nothing else; ladder.html has the layout."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from kernelproof.errors import UsageError
from kernelproof.report import ladder, ladder_words, page, pictures, units
from kernelproof.types import LadderResults, RungResult

# These stand out from white and from near black; the stripes tell them apart in print.
_LOOKS = {"pass": ("#2f9e6e", ""), "holds": ("#d08a2e", "/"), "wrong": ("#c9564f", "x")}
_ROW = 24
_BEHIND = 0.35
_TIMES = (
    "rung", "verdict", "device", "cold", "per call", "eager / it", "best / it", "of the floor",
    "first result", "bits (reference)", "error / honest",
)  # fmt: skip
_TAKES = ("rung", "registers", "shared memory", "blocks x threads", "occupancy", "in words")


def render(results: LadderResults, learnt: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        learnt: a paragraph for each problem, see `ladder_words`. Where the results do not bear it
            out, the page says so instead.
    """
    views = [
        _problem_view(number, problem, results, learnt.get(problem, ""))
        for number, problem in enumerate(results.problems, 1)
    ]
    filled = page.template("ladder.html").render(
        about=ladder.about(results),
        times_head=_TIMES,
        takes_head=_TAKES,
        library=page.library(any(view["chart"] for view in views)),
        views=views,
    )
    return str(filled) + "\n"


def _problem_view(
    number: int, problem: str, results: LadderResults, text: str
) -> dict[str, Any]:  # fmt: skip
    rows = results.of(problem)
    paragraphs, doubt = _learnt(text, rows)
    baseline = next((row.baseline for row in rows if row.baseline), "")
    return {
        "name": units.one_line(problem),
        "counts": f"{units.many(len(rows), 'design')}, "
        f"{sum(row.status == 'pass' for row in rows)} pass",
        "baseline": baseline,
        "commits": ladder.commits(results, rows),
        "learnt": paragraphs,
        "doubt": doubt,
        "chart": page.markup(_chart(f"ladder-{number}", rows)),
        "times": [(row.status or "", row.holds, _times_row(row)) for row in rows],
        "takes": [[row.rung, *ladder.resources(row), ladder.said(row)] for row in rows],
        "full": [(row.rung, row.status or "", found) for row in rows if (found := _full(row))],
    }


def _learnt(text: str, rows: tuple[RungResult, ...]) -> tuple[list[list[str]], str]:
    """Paragraphs as pieces, of which every second is code."""
    try:
        return [found.split("`") for found in ladder_words.paragraphs(text, rows)], ""
    except UsageError as error:
        return [], f"What was learnt elsewhere does not hold here: {error}"


def _times_row(row: RungResult) -> list[str]:
    """Under ``_TIMES``, without the verdict."""
    return [row.rung, *ladder.times(row), ladder.bits(row), ladder.ratio(row)]


def _full(row: RungResult) -> list[str]:
    """The judge's message and all sentences, of a rung that has any."""
    message = [units.one_line(row.message)] if row.message else []
    return [*message, *map(units.one_line, ladder.sentences(row))]


def _chart(identity: str, rows: tuple[RungResult, ...]) -> str:
    """Device time by rung on a logarithmic axis; empty where none was timed."""
    bars = ladder.bars(rows)
    if not bars:
        return ""
    times = [bar.seconds for bar in bars if bar.seconds is not None]
    eager = ladder.eager_seconds(rows)
    ends = [*times, *([eager] if eager is not None else [])]
    # Bars have no zero on a log axis, so they start a little below the shortest.
    low, high = math.log10(min(ends)) - 0.3, math.log10(max(ends))
    # Figures stand behind the bars, also on a narrow screen.
    span = [low, high + _BEHIND * (high - low)]
    axis = {
        "type": "log", "range": span, "gridcolor": "rgba(128,133,144,0.3)", "zeroline": False,
        "title": {"text": "device time (log scale)"}, **_ticks(min(ends), max(ends)),
    }  # fmt: skip
    layout = pictures.base(
        120 + _ROW * len(bars),
        barmode="overlay",
        bargap=0.3,
        xaxis=axis,
        yaxis={
            "tickmode": "array",
            "tickvals": list(range(len(bars))),
            "ticktext": [html.escape(bar.rung) for bar in bars],
            "range": [len(bars) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    )
    traces = [trace for kind in ladder.KINDS if (trace := _trace(kind, bars, span[0])) is not None]
    if eager is not None:
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": f"eager, {units.seconds(eager)}",
                "x": [eager, eager], "y": [-0.5, len(bars) - 0.5], "hoverinfo": "name",
                "line": {"color": "#4a86d8", "dash": "dash", "width": 2},
            }
        )  # fmt: skip
    return pictures.figure(identity, traces, layout)


def _ticks(least: float, most: float) -> dict[str, Any]:
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    values = [10.0**power for power in powers]
    return {"tickvals": values, "ticktext": [units.seconds(value) for value in values]}


def _trace(kind: str, bars: list[ladder.Bar], start: float) -> dict[str, Any] | None:
    """The bars of one kind; one without a time is its words alone."""
    mine = [(n, bar) for n, bar in enumerate(bars) if bar.kind == kind]
    if not mine:
        return None
    colour, stripes = _LOOKS[kind]
    shown = [bar.seconds if bar.seconds is not None else 10**start for _, bar in mine]
    hover = [
        units.seconds_interval(bar.seconds, bar.low, bar.high) if bar.seconds else bar.note
        for _, bar in mine
    ]
    return {
        "type": "bar",
        "orientation": "h",
        "name": ladder.KINDS[kind],
        "y": [n for n, _ in mine],
        "x": shown,
        "text": [units.seconds(bar.seconds) if bar.seconds else bar.note for _, bar in mine],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertext": [f"{html.escape(b.rung)}: {t}" for (_, b), t in zip(mine, hover, strict=True)],
        "hoverinfo": "text",
        "marker": {"color": colour, "pattern": {"shape": stripes, "fillmode": "overlay"}},
    }
