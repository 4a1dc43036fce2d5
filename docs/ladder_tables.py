"""The ladder in tables, words and plots, from results/ladder-cpu.json and h200/ladder.json."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

from kernelproof import ladder
from kernelproof.report import ladder as cells
from kernelproof.report import ladder_words
from kernelproof.report.units import seconds
from kernelproof.types import LadderResults, RungResult

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "results" / "ladder-cpu.json"
GPU = ROOT / "results" / "h200" / "ladder.json"
COLOURS = {"pass": "#2e7d32", "holds": "#b26a00", "wrong": "#b3261e"}
_WIDTH, _ROW, _LEFT, _TOP, _FOOT = 860, 22, 210, 58, 30
_EAGER = "#3b6fb5"
_NOTHING = LadderResults(date="", commit="", torch="", machine="", rows=())


@functools.cache
def _results(path: Path) -> LadderResults:
    return ladder.read_results(path) if path.is_file() else _NOTHING


def rows(path: Path, problem: str) -> dict[str, RungResult]:
    """Rung -> its row of one results file."""
    return {row.rung: row for row in _results(path).of(problem)}


def status(row: RungResult) -> str:
    if row.status is None:
        return "-"
    rest = "; right at the founding sizes" if row.holds else ""
    return f"**{row.status}**{rest}" if row.status != "pass" else "pass"


def table(problem: str) -> str:
    """A row for each rung: what it must get, and what the judge said, here and on the H200."""
    lines = [
        "| rung | verdict | evidence | effective bits (reference) | ratio | registers | "
        "shared memory | blocks x threads | occupancy | the judge; what holds it back |",
        "|" + "---|" * 10,
    ]
    for name, row in rows(CPU, problem).items():
        link = f"[{name}](../candidates/{problem}/{name})"
        errors = [status(row), row.evidence, cells.bits(row), cells.ratio(row)]
        lines.append(f"| {' | '.join([link, *errors, *cells.resources(row), cells.said(row)])} |")
    text = "\n".join(lines) + "\n"
    there = rows(GPU, problem)
    return text + (f"\n{_gpu_table(problem, there)}" if there else "")


def _gpu_table(problem: str, there: dict[str, RungResult]) -> str:
    about = _results(GPU)
    where = f"{cells.about(about)}, {cells.commits(about, tuple(there.values()))}"
    timed = bool(plot(problem))
    baseline = next((row.baseline for row in there.values() if row.baseline), "baseline")
    lines = [
        f"{where}; times of the founding case, all rungs in one interleaved run:"
        if timed
        else f"{where}; no rung was timed yet:",
        "",
        *([f"![time of each rung](ladder-{problem}.svg)", ""] if timed else []),
        "| rung | verdict | `allclose` | bits (reference) | ratio | device time | cold | "
        f"per call | eager / it | {baseline} / it | of the floor | first result | "
        "what holds it back |",
        "|" + "---|" * 13,
    ]
    for name, row in there.items():
        close = "-" if row.compat is None else "yes" if row.compat else "no"
        errors = [status(row), close, cells.bits(row), cells.ratio(row)]
        found = [name, *errors, *cells.times(row), cells.holds_back(row)]
        lines.append(f"| {' | '.join(found)} |")
    return "\n".join(lines) + "\n"


def inline() -> str:
    """What building the load_inline forms took on the H200's machine, beside the others."""
    lines = [
        "| rung | verdict | build by `load_inline` | first result by NVRTC |",
        "|---|---|---|---|",
    ]
    for row in _results(GPU).rows:
        if row.form == "load_inline":
            own = rows(GPU, row.problem)[row.rung].build
            times = f"{seconds(row.build_seconds)} | {seconds(own)}"
            lines.append(f"| {row.problem}/{row.rung} | {status(row)} | {times} |")
    return "\n".join(lines) + "\n"


def learnt(problem: str) -> str:
    """The paragraph of candidates/<problem>/LEARNT.md with the figures of the H200."""
    found = tuple(rows(GPU, problem).values())
    return "\n\n".join(ladder_words.paragraphs(ladder.learnt(problem), found)) + "\n"


def rung(name: str) -> str:
    """What the judge said of rung "problem/name", for its README."""
    problem, own = name.split("/")
    parts = []
    for path in (CPU, GPU):
        row = rows(path, problem).get(own)
        if row is None:
            continue
        if row.status is None:
            if row.device is not None:
                where = _results(path).machine
                parts.append(f"- on {where}: not judged yet; {seconds(row.device)} device time.")
            continue
        how = {"emulated": "without a GPU, emulated", "cpu": "on a CPU"}
        text = f"{how.get(row.evidence, f'on {_results(path).machine}')}: {row.status}"
        if row.status == "pass":
            text += f", {cells.bits(row)} effective bits (the reference's), "
            text += f"ratio {cells.ratio(row)} of 12"
        else:
            text += f": {cells.words(row)}"
        parts.append(f"- {text}{_time(row)}.")
    return "**What the judge said.**\n\n" + "\n".join(parts) + "\n" if parts else ""


def _time(row: RungResult) -> str:
    if row.device is None:
        return ""
    if row.status != "pass" and not row.holds:
        return f", also at the founding sizes; its {seconds(row.device)} count for nothing"
    alone = "" if row.status == "pass" else ", right at the founding sizes"
    eager, best = row.over("eager"), row.over(row.baseline)
    beside = f", {row.limit_share:.1%} of the floor" if row.limit_share is not None else ""
    if eager is not None and best is not None:
        beside += f"; eager takes {eager.ratio:.3g} times as long, "
        beside += f"{row.baseline} {best.ratio:.3g} times"
    return f"{alone}; {seconds(row.device)} device time{beside}"


def plots() -> dict[str, str]:
    """File name in docs/ -> SVG, for the problems with times."""
    found = {problem: plot(problem) for problem in ladder.problems()}
    return {f"ladder-{problem}.svg": text for problem, text in found.items() if text}


def plot(problem: str) -> str:
    """Device time on a logarithmic axis, a bar for each rung, coloured by verdict; "" without
    times."""
    there = tuple(rows(GPU, problem).values())
    bars = cells.bars(there)
    if not bars:
        return ""
    eager = cells.eager_seconds(there)
    ends = [bar.seconds for bar in bars if bar.seconds is not None]
    ends += [eager] if eager is not None else []
    low, high = math.log10(min(ends)) - 0.15, math.log10(max(ends)) + 0.05
    bottom = _TOP + _ROW * len(bars)

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - 90)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + _FOOT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{bottom + _FOOT}" fill="#ffffff"/>',
        f'<text x="8" y="18" font-weight="bold">{problem}: device time of each rung, '
        f"{_results(GPU).machine} (logarithmic)</text>",
        *_legend({bar.kind for bar in bars}, eager),
    ]
    for value in _ticks(low, high):
        at = f"{x(value):.1f}"
        out.append(f'<path d="M{at} {_TOP}V{bottom}" stroke="#dddddd"/>')
        out.append(
            f'<text x="{at}" y="{bottom + 18}" text-anchor="middle" fill="#555555">'
            f"{seconds(value)}</text>"
        )
    figures = []
    for number, bar in enumerate(bars):
        shown, figure = _bar(_TOP + _ROW * number, bar, x, _LEFT)
        out += shown
        figures.append(figure)
    if eager is not None:
        at = f"{x(eager):.1f}"
        dashes = f'stroke="{_EAGER}" stroke-width="2" stroke-dasharray="5 4"'
        out.append(f'<path d="M{at} {_TOP}V{bottom}" {dashes}/>')
    # Last and with a rim, so that the line of eager does not cross them.
    out += figures
    return "\n".join([*out, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each power of ten between 10^low and 10^high; the powers alone where these are
    many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    steps = (1.0, 2.0, 5.0) if high - low < 2 else (1.0,)
    found = [step * 10.0**power for power in powers for step in steps]
    return [value for value in found if low <= math.log10(value) <= high]


def _legend(kinds: set[str], eager: float | None) -> list[str]:
    out, at = [], 8.0
    for kind, words in cells.KINDS.items():
        if kind in kinds:
            out.append(f'<rect x="{at}" y="30" width="12" height="12" fill="{COLOURS[kind]}"/>')
            out.append(f'<text x="{at + 18}" y="41">{words}</text>')
            at += 40 + 6.6 * len(words)
    if eager is not None:
        out.append(
            f'<path d="M{at} 36h24" stroke="{_EAGER}" stroke-width="2" stroke-dasharray="5 4"/>'
        )
        out.append(f'<text x="{at + 30}" y="41">eager, {seconds(eager)}</text>')
    return out


def _bar(
    top: float, bar: cells.Bar, x: Callable[[float], float], left: float
) -> tuple[list[str], str]:
    """The label and the bar; and the figure behind it."""
    colour = COLOURS[bar.kind]
    label = (
        f'<text x="{left - 8}" y="{top + 15}" text-anchor="end" fill="{colour}">{bar.rung}</text>'
    )
    end = left if bar.seconds is None else x(bar.seconds)
    words = bar.note if bar.seconds is None else seconds(bar.seconds)
    figure = (
        f'<text x="{end + 6:.1f}" y="{top + 15}" fill="#333333" stroke="#ffffff" '
        f'stroke-width="3" paint-order="stroke">{words}</text>'
    )
    if bar.seconds is None:
        return [label], figure
    drawn = (
        f'<rect x="{left}" y="{top + 4}" width="{end - left:.1f}" height="{_ROW - 8}" '
        f'fill="{colour}"/>'
    )
    return [label, drawn], figure
