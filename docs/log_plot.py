"""A picture of times against a size, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernelproof.report.units import seconds

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 70, 20, 40, 50
Line = Sequence[tuple[int, float]]


def log_plot(
    title: str, lines: dict[str, Line], colours: dict[str, str], ticks: Sequence[int],
    dashed: str,
) -> str:  # fmt: skip
    """SVG. ``lines``: by name, pairs of a size of at least 1 and a time in seconds; the one named
    ``dashed`` is a limit, not a measurement."""
    times = [t for line in lines.values() for _, t in line]
    sizes = [n for line in lines.values() for n, _ in line]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    first, last = math.log2(min(sizes)), math.log2(max(sizes))

    def x(size: int) -> float:
        return _LEFT + (math.log2(size) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(time: float) -> float:
        part = (math.log10(time) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold">{title}</text>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        out.append(
            f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" '
            'stroke="#dddddd"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{seconds(10.0**power)}</text>"
        )
    out += [
        f'<text x="{x(size):.1f}" y="{_HEIGHT - 28}" text-anchor="middle" '
        f'fill="#555555">{size:,}</text>'
        for size in ticks
    ]
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x(n):.1f},{y(t):.1f}" for n, t in line)
        dash = ' stroke-dasharray="5 4"' if name == dashed else ""
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colours[name]}" '
            f'stroke-width="2"{dash}/><text x="{_LEFT + 16}" y="{_TOP + 16 + 18 * number}" '
            f'fill="{colours[name]}">{name}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"
