"""Records as one HTML page that needs nothing else: no network, no server, no fonts.

The layout is in base.html, template.html and style.css; this module prepares plain strings for it.
Jinja escapes all of them, since names, messages and logs are a candidate's own words. Only two
things go in as markup: the plotting library and the charts, whose labels are escaped here.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from kernelproof.report import inspection, page, pictures, text, times, units, verdicts
from kernelproof.types import Contestant, Inspection, Record, Run, Timing

# A linear axis shows bars of a wider span as slivers.
_LOG_SPAN = 20.0
_LABEL_LENGTH = 32
# Both colours stand out from white and from near black; the stripes tell them apart in print.
_CLOCKS = (("device", "#4a86d8", ""), ("host", "#d08a2e", "/"))
_FAINT = {"fillmode": "overlay", "fgopacity": 0.25}
_RUN_HEAD = ("case", "seed", "status", "output", "proof", "limit", *units.ERROR_HEAD, "message")
# What record.html takes beside a view.
HEADS = {"error_head": verdicts.ERROR_COLUMNS, "run_head": _RUN_HEAD}


def render(records: Sequence[Record]) -> str:
    """The whole page. The plotting library (about 5 MB) is in it once, if there is any timing."""
    views = [record_view(number, record) for number, record in enumerate(records, 1)]
    groups = [pictures.sweep_view(n, g) for n, g in enumerate(pictures.sweeps(records), 1)]
    for view in groups:
        view["pictures"] = [(title, page.markup(m)) for title, m in view["pictures"]]
    # A drawing needs no library, and most failing candidates have nothing else.
    drawn = any(view["chart"] for view in views) or any(view["pictures"] for view in groups)
    filled = page.template("template.html").render(
        summary_head=text.SUMMARY_HEAD,
        **HEADS,
        library=page.library(drawn),
        views=views,
        sweeps=groups,
    )
    return str(filled) + "\n"


def _inspection_view(found: Inspection | None) -> list[tuple[str, list[str]]]:
    """A heading and its sentences, for the call and for each kernel."""
    if found is None:
        return []
    call = [("the call", [units.one_line(text) for text in found.sentences])]
    kernels = [
        (inspection.head(k), [units.one_line(text) for text in k.sentences]) for k in found.kernels
    ]
    tools = [("NVIDIA's tools", inspection.watched(found))]
    shown = [pair for pair in (*call, *tools) if pair[1]]
    return [*shown, *kernels]


def record_view(number: int, record: Record) -> dict[str, Any]:
    """What record.html shows of a record; ``number`` tells the records of a page apart."""
    verdict, timing = record.verdict, record.timing
    details, log = verdicts.long_details(record), units.plain(record.build.log).strip("\n")
    return {
        "anchor": f"record-{number}",
        "status": record.status,
        "meaning": units.MEANING[record.status],
        "problem": units.one_line(record.problem.name),
        "candidate": units.one_line(record.candidate.name),
        "summary": text.summary_row(record),
        "facts": text.status_facts(record),
        "verdicts": text.verdict_line(record),
        "next": _next_step(record),
        "reproducer": units.plain(record.reproducer),
        "inspection": _inspection_view(record.inspection),
        "reasons": verdicts.reasons(record),
        "failures": verdicts.failure_lines(record),
        "details": details,
        "log": "" if log in details else log,
        "checks": [
            (check.outcome, units.one_line(check.name), units.one_line(check.message))
            for check in verdicts.told_checks(verdict)
        ],
        "check_counts": verdicts.check_counts(verdict),
        "notes": text.notes(record),
        "errors": verdicts.error_rows(verdict),
        "limit": units.ratio(verdict.limit),
        "timing": _timing_view(timing) if timing else None,
        "chart": page.markup(_chart(f"chart-{number}", timing) if timing else ""),
        "pictures": [
            (title, page.markup(found))
            for title, found in pictures.of_record(f"picture-{number}", record)
        ],
        "runs": [row for run in verdict.runs for row in _run_rows(run, verdict.limit)],
        "run_count": units.many(len(verdict.runs), "run"),
        "environment": units.environment_facts(record.environment),
        "created": record.created.isoformat(timespec="seconds"),
        "id": units.one_line(record.id),
        "digests": f"problem {record.problem.digest}, candidate {record.candidate.digest}",
        "json": record.model_dump_json(indent=1),
    }


def _next_step(record: Record) -> tuple[str, str]:
    """What to do, in words and as a command."""
    command = text.next_command(record)
    if record.status == "unsupported":
        return "This machine lacks something that it needs; what, and how to get it:", command
    if record.status != "pass":
        return "Whether a change mends the worst of it:", command
    if command.startswith("kernelproof bench"):
        return "It is right. How fast it is:", command
    files = " ".join(map(units.shell_path, text.files_of(record)))
    return "A file by which others can check this:", f"kernelproof prove {files} -o proof.json"


def _timing_view(timing: Timing) -> dict[str, Any]:
    everyone = text.contestants(timing)
    more = (times.clock_rows(timing, everyone), times.once_rows(everyone))
    return {
        "place": f"case {units.one_line(timing.case)}, {units.one_line(timing.device)}, "
        f"{units.many(timing.threads, 'thread')}",
        "rows": text.contestant_rows(timing),
        "facts": [*text.time_facts(timing), *times.condition_lines(timing.conditions)],
        "tables": [rows for rows in more if rows],
    }


def _run_rows(run: Run, limit: float) -> list[list[str]]:
    """One row an output under ``_RUN_HEAD``; one without figures for a run that gave none."""
    start = [units.one_line(run.name), str(run.seed)]
    if not run.outputs:
        blanks = [units.MISSING] * (len(_RUN_HEAD) - len(start) - 2)
        return [[*start, run.status, *blanks, units.one_line(run.message)]]
    return [
        [
            *start,
            run.status if output.passed or run.status != "pass" else "wrong",
            units.one_line(output.name),
            units.ratio(verdicts.output_ratio(output)),
            units.ratio(limit),
            *units.error_cells(output.figures),
            units.one_line(output.message or run.message),
        ]
        for output in run.outputs
    ]


def _chart(identity: str, timing: Timing) -> str:
    """Horizontal bars of the times with 95 % intervals; empty where nothing has a time."""
    everyone = text.contestants(timing)
    clocks = [clock for clock in _CLOCKS if clock[0] == "host" or not text.one_clock(timing)]
    bars = [(clock, _bars(everyone, clock[0])) for clock in clocks]
    ends = [end for _, found in bars for _, (_, low, high) in found for end in (low, high)]
    if not ends:
        return ""
    factor, unit = units.seconds_scale(max(ends))
    traces = [_trace(clock, found, factor, unit, single=len(clocks) == 1) for clock, found in bars]
    labels = [html.escape(_label(one, role)) for one, role in everyone]
    layout = _layout(labels, min(ends) / factor, max(ends) / factor, unit)
    return pictures.figure(identity, traces, layout)


def _label(contestant: Contestant, role: str) -> str:
    name = role or units.one_line(contestant.name)
    return name if len(name) <= _LABEL_LENGTH else name[: _LABEL_LENGTH - 2] + ".."


def _bars(
    everyone: Sequence[tuple[Contestant, str]], clock: str
) -> list[tuple[int, tuple[float, float, float]]]:
    """(row, (median, low, high)) in seconds of those whose time a chart can show."""
    found = []
    for row, (one, _) in enumerate(everyone):
        series = one.device if clock == "device" else one.host
        if series is None or not 0 < series.median < math.inf:
            continue
        low, high = (
            end if 0 < end < math.inf else series.median for end in (series.low, series.high)
        )
        found.append((row, (series.median, min(low, series.median), max(high, series.median))))
    return found


def _trace(
    clock: tuple[str, str, str],
    found: Sequence[tuple[int, tuple[float, float, float]]],
    factor: float,
    unit: str,
    *,
    single: bool,
) -> dict[str, Any]:
    name, colour, stripes = clock
    words = [units.seconds_interval(*times) for _, times in found]
    return {
        "type": "bar",
        "orientation": "h",
        "name": "time" if single else name,
        "y": [row for row, _ in found],
        "x": [median / factor for _, (median, _, _) in found],
        "text": [units.seconds(median) for _, (median, _, _) in found],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        # On both colours, and over stripes that are faint enough.
        "insidetextfont": {"color": "#101418"},
        "hovertext": words,
        "hoverinfo": "text",
        "marker": {"color": colour, "pattern": {"shape": stripes, **_FAINT}},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(high - median) / factor for _, (median, _, high) in found],
            "arrayminus": [(median - low) / factor for _, (median, low, _) in found],
            "color": "#808590",
        },
    }


def _layout(labels: Sequence[str], least: float, most: float, unit: str) -> dict[str, Any]:
    """``least`` and ``most`` are the ends of all intervals, in ``unit``."""
    if most > _LOG_SPAN * least:
        # Bars have no zero on a log axis, so they start a little below the shortest.
        span = [math.log10(least) - 0.5, math.log10(most) + 0.1]
        axis = {"type": "log", "range": span, "title": {"text": f"{unit} per call (log scale)"}}
    else:
        axis = {"range": [0, most * 1.08], "title": {"text": f"{unit} per call"}}
    grid = {"gridcolor": "rgba(128,133,144,0.3)", "zeroline": False}
    return {
        "height": 110 + 48 * len(labels),
        "barmode": "group",
        "bargap": 0.25,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        # The page's style sheet sets the text to its own colour; this one is for what it misses.
        "font": {"color": "#808590", "family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 8, "r": 16, "t": 8, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        "xaxis": {**axis, **grid, "automargin": True},
        "yaxis": {
            "tickmode": "array",
            # Rows are numbered, since two contestants may have the same name.
            "tickvals": list(range(len(labels))),
            "ticktext": list(labels),
            "range": [len(labels) - 0.5, -0.5],
            "automargin": True,
            "showgrid": False,
            "zeroline": False,
        },
    }
