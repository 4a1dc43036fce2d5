"""Pictures of records: the roofline, scaling over a sweep; errors.py has that of errors.

Each is a figure of the plotting library, as the chart of times in html.py is: drawn in the page,
legible in light, dark and print. Names are a candidate's own words and are escaped here.
"""

from __future__ import annotations

import html
import importlib
import math
from collections.abc import Iterable, Sequence
from typing import Any

from kernelproof.report import errors, speed, text, units
from kernelproof.types import Bound, Record, Series, Timing

# These stand out from white and from near black; symbols tell them apart in print.
COLOURS = ("#4a86d8", "#d08a2e", "#2f9e6e", "#b05fc4", "#c9564f", "#7d8590")
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")
_GREY = "#808590"
_GRID = {"gridcolor": "rgba(128,133,144,0.3)", "zeroline": False, "automargin": True}
# The roofline is drawn so far to both sides of the work and of the ridge.
_MARGIN = 8.0


def plotly(module: str) -> Any:
    """A module of plotly: loaded late, since that is slow, and ``Any``, since it has no types."""
    return importlib.import_module(f"plotly.{module}")


def figure(identity: str, traces: Sequence[Any], layout: dict[str, Any]) -> str:
    """Markup of a figure without the plotting library. ``identity`` takes the place of plotly's
    random one: the same records give the same page."""
    return str(
        plotly("io").to_html(
            {"data": list(traces), "layout": layout},
            config={"displayModeBar": False, "responsive": True},
            include_plotlyjs=False,
            full_html=False,
            default_height=f"{layout['height']}px",
            div_id=identity,
            validate=False,
        )
    )


def base(height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share."""
    return {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        # The page's style sheet sets the text to its own colour; this one is for what it misses.
        "font": {"color": _GREY, "family": "system-ui, sans-serif", "size": 13},
        "margin": {"l": 8, "r": 16, "t": 8, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        **more,
    }


def of_record(identity: str, record: Record) -> list[tuple[str, str]]:
    """(title, markup) of what a record has to show beside its times."""
    found = [("Error against its budget", errors.errors(record.verdict))]
    if record.timing is not None:
        found.append(("Roofline", roofline(f"{identity}-roofline", record.timing)))
    return [(title, markup) for title, markup in found if markup]


def roofline(identity: str, timing: Timing) -> str:
    """FLOP/s over FLOP per byte, under the limits that bound this work; everyone timed did the
    same work, so they stand above each other."""
    limit, work = timing.limit, timing.work
    if limit is None or work is None or not work.flops or not work.bytes:
        return ""
    slope = next((b for b in limit.bounds if b.kind == "memory"), None)
    roofs = [b for b in limit.bounds if b.kind in ("matrix", "vector")]
    points = [
        (role or units.one_line(one.name), series)
        for one, role in text.contestants(timing)[: 1 + len(timing.baselines)]
        if (series := text.main_series(one, timing)) is not None and series.median > 0
    ]
    if slope is None or not roofs or not points:
        return ""
    at = work.flops / work.bytes
    ridge = max(roof.rate for roof in roofs) / slope.rate
    span = (min(at, ridge) / _MARGIN, max(at, ridge) * _MARGIN)
    traces = [_slope(slope, span, max(roof.rate for roof in roofs)), *_roofs(roofs, slope, span)]
    for number, (name, series) in enumerate(points):
        traces.append(_work_point(number, name, series, at, work.flops))
    axis = {"type": "log", **_GRID}
    layout = base(
        380,
        xaxis={**axis, "title": {"text": "FLOP per byte (log scale)"}},
        yaxis={**axis, "title": {"text": "FLOP/s (log scale)"}, "exponentformat": "SI"},
        hovermode="closest",
    )
    return figure(identity, traces, layout)


def _slope(bound: Bound, span: tuple[float, float], top: float) -> dict[str, Any]:
    end = min(span[1], top / bound.rate)
    return _curve(
        f"memory {units.byte_rate(bound.rate)}",
        [span[0], end],
        [span[0] * bound.rate, end * bound.rate],
        "solid",
    )


def _roofs(roofs: Sequence[Bound], slope: Bound, span: tuple[float, float]) -> list[dict[str, Any]]:
    dashes = ("dash", "dot", "dashdot", "longdash")
    found = []
    for number, roof in enumerate(roofs):
        start = max(span[0], roof.rate / slope.rate)
        name = f"{roof.name} {units.flop_rate(roof.rate)}"
        found.append(_curve(name, [start, span[1]], [roof.rate] * 2, dashes[number % len(dashes)]))
    return found


def _curve(name: str, x: list[float], y: list[float], dash: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "lines", "name": html.escape(name), "x": x, "y": y,
        "line": {"color": _GREY, "width": 2, "dash": dash}, "hoverinfo": "name",
    }  # fmt: skip


def _work_point(number: int, name: str, series: Series, at: float, flops: float) -> dict[str, Any]:
    rate = flops / series.median
    words = f"{name}: {units.time_cell(series)}, {units.flop_rate(rate)}"
    return {
        "type": "scatter", "mode": "markers", "name": html.escape(_short(name)),
        "x": [at], "y": [rate], "hovertext": [html.escape(words)], "hoverinfo": "text",
        "marker": {"size": 11, "color": _colour(number), "symbol": _symbol(number)},
    }  # fmt: skip


# Sweeps


def sweeps(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each sweep, by size, where it has two or more."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.sweep is not None:
            groups.setdefault(record.sweep.id, []).append(record)
    found = (sorted(group, key=_size) for group in groups.values())
    return [group for group in found if len(group) > 1]


def _size(record: Record) -> int:
    return record.sweep.value if record.sweep is not None else 0


def sweep_view(number: int, group: Sequence[Record]) -> dict[str, Any]:
    """Title, table and pictures of one sweep, for the page."""
    first = group[0]
    assert first.sweep is not None
    name = units.one_line(first.sweep.name)
    rows = speed.sweep_rows(group)
    rows[0][0] = name
    timed = [record for record in group if record.timing is not None]
    identity = f"sweep-{number}"
    return {
        "title": f"{units.one_line(first.candidate.name)} for {units.one_line(first.problem.name)}"
        f" over {name}",
        "rows": rows,
        "pictures": [
            (title, markup)
            for title, markup in (
                ("Time", _sweep_times(f"{identity}-time", name, timed)),
                ("Bandwidth", _sweep_bandwidth(f"{identity}-bandwidth", name, timed)),
            )
            if markup
        ],
    }


def _timings(records: Iterable[Record]) -> list[tuple[int, Timing]]:
    return [(_size(record), record.timing) for record in records if record.timing is not None]


def _sweep_times(identity: str, name: str, records: Sequence[Record]) -> str:
    """Time with its interval over the size, of everyone timed, and the physics floor."""
    lines: dict[str, list[tuple[int, Series]]] = {}
    for size, timing in _timings(records):
        for one, role in text.contestants(timing):
            series = text.main_series(one, timing)
            if series is not None and 0 < series.median < math.inf:
                lines.setdefault(role or units.one_line(one.name), []).append((size, series))
    if not lines:
        return ""
    floors = [(size, t.limit.seconds) for size, t in _timings(records) if t.limit is not None]
    traces = [_time_line(number, label, line) for number, (label, line) in enumerate(lines.items())]
    if floors:
        x, y = [size for size, _ in floors], [seconds for _, seconds in floors]
        traces.append(_curve("physics floor", [float(v) for v in x], y, "dash"))
    layout = _sweep_layout(
        name,
        "seconds per call (log scale)",
        [record.sweep.value for record in records if record.sweep],
    )
    return figure(identity, traces, layout)


def _time_line(number: int, label: str, line: Sequence[tuple[int, Series]]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": html.escape(_short(label)),
        "x": [size for size, _ in line],
        "y": [series.median for _, series in line],
        "hovertext": [html.escape(f"{label}: {units.time_cell(s)}") for _, s in line],
        "hoverinfo": "text",
        "line": {"color": _colour(number), "width": 2},
        "marker": {"size": 8, "color": _colour(number), "symbol": _symbol(number)},
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [max(0.0, series.high - series.median) for _, series in line],
            "arrayminus": [max(0.0, series.median - series.low) for _, series in line],
            "color": _GREY,
        },
    }


def _sweep_bandwidth(identity: str, name: str, records: Sequence[Record]) -> str:
    """Minimal bytes over time, and the bandwidth that bounds each size."""
    reached, limits = [], []
    for size, timing in _timings(records):
        series = text.main_series(timing.candidate, timing)
        if timing.work is None or not timing.work.bytes or series is None or not series.median > 0:
            continue
        reached.append((float(size), timing.work.bytes / series.median))
        bounds = timing.limit.bounds if timing.limit is not None else ()
        limits += [(float(size), bound.rate) for bound in bounds if bound.kind == "memory"]
    if not reached:
        return ""
    x, y = [size for size, _ in reached], [rate for _, rate in reached]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines+markers", "name": "candidate", "x": x, "y": y,
            "hovertext": [units.byte_rate(rate) for rate in y], "hoverinfo": "text",
            "line": {"color": _colour(0), "width": 2}, "marker": {"size": 8},
        }
    ]  # fmt: skip
    if limits:
        ends = [size for size, _ in limits], [rate for _, rate in limits]
        traces.append(_curve("measured bandwidth at this size", *ends, "dash"))
    layout = _sweep_layout(name, "bytes per second (log scale)", [int(size) for size in x])
    return figure(identity, traces, layout)


def _sweep_layout(name: str, title: str, sizes: Sequence[int]) -> dict[str, Any]:
    x = {"type": "log", **_GRID, "title": {"text": f"{html.escape(name)} (log scale)"}}
    x |= {"tickmode": "array", "tickvals": list(sizes), "ticktext": [f"{n}" for n in sizes]}
    y = {"type": "log", **_GRID, "title": {"text": title}, "exponentformat": "SI"}
    return base(340, xaxis=x, yaxis=y, hovermode="closest")


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _symbol(number: int) -> str:
    return _SYMBOLS[number % len(_SYMBOLS)]


def _short(name: str, most: int = 32) -> str:
    return name if len(name) <= most else name[: most - 2] + ".."
