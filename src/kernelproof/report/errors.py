"""The picture of errors against their budget: a drawing in SVG, which needs no script.

Reports of candidates that failed have no times, and this is all that they draw: the plotting
library would make such a page a thousand times as large. Colours are those of the page.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from kernelproof.report import units, verdicts
from kernelproof.types import OutputVerdict, Run, Verdict

_MOST_CASES = 60
_WIDTH, _LEFT, _RIGHT = 640, 170, 24
_TOP, _ROW, _BOTTOM = 8, 18, 44
# Powers of ten of ratio over limit that are drawn; what lies beyond is drawn at the edge.
_LOW, _HIGH = -4, 4
_SHAPES = ("circle", "square", "diamond")

# The run in which an output of a case did worst, and its proof ratio over the limit.
_Worst = tuple[Run, OutputVerdict, float]


def errors(verdict: Verdict) -> str:
    """Markup with one mark for each case and output, that of its worst run, on a scale of proof
    ratio over the limit. Empty where fewer than two cases were compared."""
    found = _worst(verdict)
    cases = list(dict.fromkeys(case for case, _ in found))[:_MOST_CASES]
    outputs = list(dict.fromkeys(name for _, name in found))
    if len(cases) < 2:
        return ""
    height = _TOP + _ROW * len(cases) + _BOTTOM
    parts = [
        f'<svg class="errors" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="error over its limit, by case">',
        *_axis(len(cases)),
    ]
    for row, case in enumerate(cases):
        y = _TOP + _ROW * (row + 0.5)
        label = html.escape(_short(units.one_line(case)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
        for number, name in enumerate(outputs):
            if (entry := found.get((case, name))) is not None:
                parts.append(_mark(entry, number, y, verdict.limit))
    return "".join([*parts, *_legend(outputs, height), "</svg>"])


def _worst(verdict: Verdict) -> dict[tuple[str, str], _Worst]:
    found: dict[tuple[str, str], _Worst] = {}
    for run in verdict.runs:
        for output in run.outputs:
            ratio = verdicts.output_ratio(output)
            if ratio is None:
                continue
            size = math.inf if math.isnan(ratio) else ratio / verdict.limit
            key = (run.case, output.name)
            if key not in found or size > found[key][2]:
                found[key] = run, output, size
    return found


def _x(size: float) -> float:
    """Where a ratio over the limit is drawn; zero, which has no logarithm, at the left edge."""
    power = math.log10(size) if 0 < size < math.inf else (_LOW if size <= 0 else _HIGH)
    share = (min(max(power, _LOW), _HIGH) - _LOW) / (_HIGH - _LOW)
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _axis(rows: int) -> list[str]:
    bottom = _TOP + _ROW * rows
    parts = []
    for power in range(_LOW, _HIGH + 1):
        x = _x(10.0**power)
        kind = "limit" if power == 0 else "grid"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        label = "limit" if power == 0 else f"{10.0**power:g}"
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{label}</text>')
    return parts


def _mark(entry: _Worst, number: int, y: float, limit: float) -> str:
    run, output, size = entry
    words = f"{run.name}, seed {run.seed}: {output.name} {units.proof(size * limit, limit)}"
    title = f"<title>{html.escape(units.one_line(words))}</title>"
    kind = "over" if not size <= 1 else "under"
    return _shape(_SHAPES[number % len(_SHAPES)], kind, _x(size), y, title)


def _shape(shape: str, kind: str, x: float, y: float, title: str = "") -> str:
    if shape == "circle":
        return f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>'
    turn = f' transform="rotate(45 {x:.1f} {y:.1f})"' if shape == "diamond" else ""
    corner = f'x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"'
    return f'<rect class="{kind}" {corner}{turn}>{title}</rect>'


def _legend(outputs: Sequence[str], height: int) -> list[str]:
    if len(outputs) < 2:
        return []
    parts, step = [], (_WIDTH - _LEFT) / min(len(outputs), len(_SHAPES))
    for number, name in enumerate(outputs[: len(_SHAPES)]):
        x = _LEFT + step * number + 8
        label = html.escape(_short(units.one_line(name)))
        if number + 1 == len(_SHAPES) and len(outputs) > len(_SHAPES):
            label += f" and {len(outputs) - len(_SHAPES)} more"
        parts.append(_shape(_SHAPES[number], "under", x, height - 10))
        parts.append(f'<text x="{x + 10:.0f}" y="{height - 6}">{label}</text>')
    return parts


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 2] + ".."
