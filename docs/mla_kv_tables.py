"""Tables and the picture of benchmarks/mla_kv.py's results."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from kernelproof.report.units import ratio, seconds

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "h200" / "mla_kv.json"
_FLOORS = ROOT / "results" / "h200" / "2026-11-30-floors.json"
_FOUNDING = dict(batch=4, seq=96, model=256, rank=48, kv_heads=4, head_dim=32)
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 70, 20, 40, 50
_COLOURS = {"mla_kv": "#0a7d4b", "two matmuls": "#a04000", "roofline": "#888888"}


def rows(kind: str) -> list[dict[str, Any]]:
    """Rows of one kind; none where the file does not exist."""
    if not RESULTS.exists():
        return []
    return [row for row in json.loads(RESULTS.read_text())["rows"] if row["kind"] == kind]


def medians(row: dict[str, Any]) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in row["seconds"].items()}


def table(kind: str = "target") -> str:
    """Each row with the times of all contenders and the ratio to the best of the others."""
    lines = ["| case | mla_kv | design | others | ratio |", "|---|---|---|---|---|"]
    ratios = []
    for row in rows(kind):
        times = medians(row)
        mine = times.pop("mla_kv")
        others = ", ".join(f"{name} {seconds(t)}" for name, t in times.items())
        ratios.append(mine / min(times.values()))
        design = row["design"][0].split(":")[0]
        lines.append(
            f"| {row['name']} | {seconds(mine)} | {design} | {others} | {ratio(ratios[-1])} |"
        )
    if kind == "shape" and ratios:
        lines += [
            "",
            f"Median ratio {ratio(statistics.median(ratios))}, largest {ratio(max(ratios))}.",
        ]
    return "\n".join(lines) + "\n"


def limits() -> tuple[float, float]:
    """Measured copy bandwidth (bytes/s) and rate of bf16 products (FLOP/s) of this GPU."""
    floors = json.loads(_FLOORS.read_text())["floors"]["measured 1"]
    return floors["bandwidth"][-1]["copied"], floors["matrix"]["bf16"]


def plot() -> str:
    """Time against tokens, both axes logarithmic, with the time that memory or tensor cores take
    at the least; "" without results."""
    found = rows("tokens")
    if not found:
        return ""
    bandwidth, rate = limits()
    lines = {
        name: [(row["tokens"], medians(row)[name]) for row in found]
        for name in ("mla_kv", "two matmuls")
    }
    lines["roofline"] = [
        (row["tokens"], max(row["bytes"] / bandwidth, row["flops"] / rate)) for row in found
    ]
    times = [t for line in lines.values() for _, t in line]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    last = math.log2(max(row["tokens"] for row in found))

    def x(tokens: int) -> float:
        return _LEFT + math.log2(tokens) / last * (_WIDTH - _LEFT - _RIGHT)

    def y(time: float) -> float:
        part = (math.log10(time) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        '<text x="8" y="20" font-weight="bold">mla_kv, bf16, M 2048, R 512, 16 heads of 128: '
        "device time of a call against tokens</text>",
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
        f'<text x="{x(row["tokens"]):.1f}" y="{_HEIGHT - 28}" text-anchor="middle" '
        f'fill="#555555">{row["tokens"]:,}</text>'
        for row in found[::2]
    ]
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[name]
        points = " ".join(f"{x(n):.1f},{y(t):.1f}" for n, t in line)
        dash = ' stroke-dasharray="5 4"' if name == "roofline" else ""
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
            f'<text x="{_LEFT + 16}" y="{_TOP + 16 + 18 * number}" fill="{colour}">{name}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def cpu_table() -> str:
    """Rows of benchmarks/mla_kv_cpu.py: medians of processor time beside PyTorch's."""
    found = json.loads((ROOT / "results" / "cpu" / "mla_kv_cpu.json").read_text())
    env = found["environment"]
    lines = [
        f"{env['cpu']}, one thread, {found['instructions']}, fp32, torch {env['torch']}:",
        "",
        "| N, M, R, H, D | weights | mla_kv | eager | two matmuls | written in place | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        sizes = {**_FOUNDING, **row["sizes"]}
        shape = (sizes.pop("batch") * sizes.pop("seq"), *sizes.values())
        times = medians(row)
        mine = times.pop("mla_kv")
        cells = [
            ", ".join(map(str, shape)), "out_in" if row["linear"] else "in_out", seconds(mine),
            *map(seconds, times.values()), ratio(mine / min(times.values())),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
