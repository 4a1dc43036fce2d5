"""A run of a suite as HTML: suite.html has the layout. The picture is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernelproof.report import page, suites, units
from kernelproof.types import DeviceNumbers, SuiteResult, SuiteState

_HEAD = ("item", "category", "status", "its harness", "time", "eager / it", "answer", "on", "")
_TIMES = ("time", "eager / it", "answer")
_WIDTH, _HEIGHT = 560, 240
_LEFT, _RIGHT, _TOP, _FOOT = 44, 12, 10, 34
_TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def render(state: SuiteState) -> str:
    """The whole page, which nothing else is needed for."""
    filled = page.template("suite_page.html").render(suite=view(state), library="")
    return str(filled) + "\n"


def view(state: SuiteState) -> dict[str, Any]:
    """What suite.html shows."""
    run = state.run
    timed = any(result.time is not None for result in state.results)
    harness = any(result.harness is not None for result in state.results)
    missing = [result.item for result in state.results if result.status == "missing"]
    return {
        "id": run.id,
        "name": units.one_line(run.suite),
        "about": suites.title(run).partition(" of ")[2],
        "left": state.left,
        "command": f"kernelproof suite run --resume {run.id}" if state.left else "",
        "devices": [_device(state, numbers) for numbers in state.devices],
        "fast_head": suites.FAST_HEAD,
        "wins_head": suites.WINS_HEAD,
        "category_head": suites.CATEGORY_HEAD,
        "definitions": suites.DEFINITIONS if any(d.total.fast for d in state.devices) else (),
        "head": [
            name
            for name in _HEAD
            if (timed or name not in _TIMES) and (harness or name != "its harness")
        ],
        "timed": timed,
        "harness": harness,
        "rows": [_row(result) for result in state.results if result.status != "missing"],
        # Those can be most: told together.
        "missing": units.many(len(missing), "problem") if missing else "",
        "missing_names": units.one_line(", ".join(missing)),
    }


def _device(state: SuiteState, numbers: DeviceNumbers) -> dict[str, Any]:
    mine = [r for r in state.results if r.device == numbers.device and r.ratios]
    return {
        "name": units.one_line(numbers.device) or "judged on no device",
        "count": units.many(numbers.total.count, "item"),
        "statuses": list(numbers.total.statuses.items()),
        "compat": numbers.total.compat,
        "fast": suites.fast_rows(numbers.total),
        "wins": suites.wins_rows(numbers.total),
        "categories": suites.category_rows(numbers),
        "picture": page.markup(_picture(mine, numbers.total.count)),
    }


def _row(result: SuiteResult) -> dict[str, Any]:
    eager = next((r for r in result.ratios if r.baseline == "eager"), None)
    ratio, answer = units.ratio_cells(eager)
    time = units.seconds_interval(*result.time) if result.time is not None else ""
    return {
        "item": units.one_line(result.item),
        "category": units.one_line(result.category),
        "status": result.status,
        "harness": suites.harness(result),
        "time": time,
        "ratio": ratio,
        "answer": answer,
        "place": units.one_line(result.place),
        "message": units.plain(suites.message(result)),
        "record": result.record_id,
    }


def _picture(results: Sequence[SuiteResult], count: int) -> str:
    """The share of all ``count`` items that pass and are more than p times as fast as eager, over
    p; a band from the low to the high ends of their intervals. "" where none was timed."""
    ratios = [r for one in results for r in one.ratios if r.baseline == "eager" and r.low > 0]
    if not ratios or count == 0:
        return ""
    ends = [min(r.low for r in ratios), max(r.high for r in ratios), 0.9, 1.1]
    low, high = math.log(min(ends)) - 0.05, math.log(max(ends)) + 0.05

    def x(p: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log(p) - low) / (high - low)

    def y(share: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _FOOT) * (1 - share)

    def steps(values: Sequence[float]) -> list[tuple[float, float]]:
        points, left = [(float(_LEFT), y(len(values) / count))], len(values)
        for value in sorted(values):
            points.append((x(value), y(left / count)))
            left -= 1
            points.append((x(value), y(left / count)))
        return [*points, (float(_WIDTH - _RIGHT), y(0.0))]

    band = steps([r.low for r in ratios]) + steps([r.high for r in ratios])[::-1]
    lines = [f'<polygon class="band" points="{_points(band)}"/>']
    lines.append(f'<polyline class="line" points="{_points(steps([r.ratio for r in ratios]))}"/>')
    for share in (0.0, 0.5, 1.0):
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(share):.1f}" '
            f'y2="{y(share):.1f}"/><text x="{_LEFT - 6}" y="{y(share) + 4:.1f}" '
            f'text-anchor="end">{share:g}</text>'
        )
    bottom = _HEIGHT - _FOOT
    for tick in _TICKS:
        if low <= math.log(tick) <= high:
            kind = "one" if tick == 1.0 else "grid"
            lines.append(
                f'<line class="{kind}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_TOP}" '
                f'y2="{bottom}"/><text x="{x(tick):.1f}" y="{bottom + 14}" '
                f'text-anchor="middle">{tick:g}x</text>'
            )
    label = "share of all items that pass and are more than p times as fast as eager"
    return (
        f'<svg class="shares" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        + "".join(lines)
        + "</svg>"
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
