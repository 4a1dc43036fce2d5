"""Tables and the picture of benchmarks/int8_attention.py's results."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from kernelproof.report.units import ratio, seconds

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "h200" / "int8_attention.json"
_FLOORS = ROOT / "results" / "h200" / "2026-11-30-floors.json"
# Dense int8 and fp16 rates of the H200's datasheet, operations/s.
_INT8_RATE, _FP16_RATE = 1.979e15, 0.9895e15
# What was aimed at: seconds by tier, or shares of a time of a peer ("" is the best one).
_TARGETS: dict[str, dict[str, float | tuple[float, str]]] = {
    "founding": {"strict": 1.9e-6},
    "B2 S4096 H32 D128": {"high": 390e-6, "strict": 600e-6},
    "B1 S16384 H32 D128": {"high": 2750e-6, "strict": 4300e-6},
    "B2 S4096 H32 D64": {"high": 290e-6, "strict": 390e-6},
    "B1 S8192 H32 of 8 D128": {"high": (0.8, "cuDNN bf16")},
    "B2 S4096 H32 D80": {"high": (0.95, "cuDNN bf16")},
    "B2 S4096 H32 D96": {"high": (0.95, "cuDNN bf16")},
    "B2 S4096 H32 D256": {"high": (0.95, "cuDNN bf16")},
    "B2 S4096 H32 D128, all keys": {"high": (0.95, "cuDNN bf16")},
    "64 sequences of 1 to 4,096, H32 D128": {"high": (0.95, "")},
    "B16, 1 query, 32,768 keys, H32 of 8 D128": {"strict": (0.6, ""), "high": (0.6, "")},
}
_HOST_TARGET = 12e-6
_STREAMING_TARGET = 0.75  # of the rate of streaming reads, decoding
_OURS = ("strict", "high", "fast")
_PEERS = ("cuDNN bf16", "flash bf16", "Sage")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 60, 20, 40, 50
_COLOURS = {
    "strict": "#0a7d4b", "high": "#1f5fbf", "fast": "#6aa5e8", "cuDNN bf16": "#a04000",
    "SDPA bf16": "#d08030", "flash bf16": "#c9b037", "Sage": "#7d3c98", "floor": "#888888",
}  # fmt: skip


def rows(kind: str) -> list[dict[str, Any]]:
    """Rows of one kind; none where the file does not exist."""
    if not RESULTS.exists():
        return []
    return [row for row in json.loads(RESULTS.read_text())["rows"] if row["kind"] == kind]


def medians(row: dict[str, Any]) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in row["seconds"].items()}


def _time(times: dict[str, float], name: str) -> str:
    return seconds(times[name]) if name in times else "-"


def table(kind: str = "target") -> str:
    """Times of both tiers and of the peers, and ratios to the best peer that ran."""
    if kind == "decode":
        return _decode_table()
    lines = [
        "| case | strict | high | strict, fp16 V | high, fp16 V | cuDNN bf16 | flash bf16 | Sage | "
        "strict / best peer | high / best peer | error of strict, high |",
        "|" + "---|" * 11,
    ]
    for row in rows(kind):
        times = medians(row)
        names = ("strict", "high", "strict, fp16 V", "high, fp16 V", *_PEERS)
        best = _best_peer(times)
        cells = [row["name"], *(_time(times, name) for name in names)]
        cells += [ratio(times[name] / best) for name in ("strict", "high")]
        cells += [", ".join(f"{row['errors'][name]:.1e}" for name in ("strict", "high"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _best_peer(times: dict[str, float]) -> float:
    return min(t for name, t in times.items() if name.split(",")[0] not in _OURS)


def _streaming() -> float:
    """Bytes/s of streaming reads."""
    rate: float = json.loads(_FLOORS.read_text())["floors"]["measured 1"]["bandwidth"][-1]["read"]
    return rate


def targets() -> str:
    """Each target beside what was measured."""
    lines = ["| case | accuracy | target | measured | |", "|---|---|---|---|---|"]

    def add(case: str, tier: str, target: str, measured: str, met: bool) -> None:
        lines.append(f"| {case} | {tier} | {target} | {measured} | {'met' if met else 'missed'} |")

    for row in [*rows("target"), *rows("decode")]:
        times = medians(row)
        for tier, target in _TARGETS.get(row["name"], {}).items():
            time = times[tier]
            if isinstance(target, float):
                add(row["name"], tier, seconds(target), seconds(time), time <= target)
                continue
            share, peer = target
            share_measured = time / (times[peer] if peer else _best_peer(times))
            words = f"{share:g} of {peer or 'the best peer'}"
            add(row["name"], tier, words, f"{share_measured:.3f}", share_measured <= share)
        if row["kind"] == "decode" and row["name"] in _TARGETS:
            share_measured = row["bytes"] / times["strict"] / _streaming()
            words = f"{_STREAMING_TARGET:.0%} of streaming reads"
            met = share_measured >= _STREAMING_TARGET
            add(row["name"], "strict", words, f"{share_measured:.0%}", met)
        host = row.get("host_seconds", {}).get("strict")
        if host is not None:
            met = host <= _HOST_TARGET
            add(f"{row['name']}, host", "strict", seconds(_HOST_TARGET), seconds(host), met)
    return "\n".join(lines) + "\n"


def _decode_table() -> str:
    read = _streaming()
    lines = [
        "| case | strict | high | cuDNN bf16 | flash bf16 | strict / best peer | bytes of strict | "
        "of streaming reads | error of strict, high |",
        "|" + "---|" * 9,
    ]
    for row in rows("decode"):
        times = medians(row)
        best = min((times[name] for name in _PEERS if name in times), default=math.nan)
        rate = row["bytes"] / times["strict"]
        cells = [row["name"]]
        cells += [_time(times, n) for n in ("strict", "high", "cuDNN bf16", "flash bf16")]
        cells += [ratio(times["strict"] / best), f"{rate * 1e-12:.2f} TB/s", f"{rate / read:.0%}"]
        cells += [", ".join(f"{row['errors'][name]:.1e}" for name in ("strict", "high"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def founding() -> str:
    """Device and host time of a call at the founding size."""
    lines = ["| | device | host |", "|---|---|---|"]
    for row in rows("target"):
        for name, host in row.get("host_seconds", {}).items():
            lines.append(f"| {name} | {seconds(medians(row)[name])} | {seconds(host)} |")
    return "\n".join(lines) + "\n"


def floor_seconds(flops: float) -> float:
    """Both products at the datasheet's rates: half of the operations each."""
    return flops / 2 / _INT8_RATE + flops / 2 / _FP16_RATE


def plot() -> str:
    """TFLOP/s against the sequence length; "" without results."""
    found = rows("length")
    if not found:
        return ""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in found:
        times = {**medians(row), "floor": floor_seconds(row["flops"])}
        for name, time in times.items():
            if name in _COLOURS:
                rate = row["flops"] / time * 1e-12
                lines.setdefault(name, []).append((row["seq"], rate))
    lengths = sorted({row["seq"] for row in found})
    most = max(rate for line in lines.values() for _, rate in line)
    top = 200 * math.ceil(most / 200)
    first, last = math.log2(lengths[0]), math.log2(lengths[-1])

    def x(length: int) -> float:
        return _LEFT + (math.log2(length) - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(rate: float) -> float:
        return _HEIGHT - _BOTTOM - rate / top * (_HEIGHT - _TOP - _BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        '<text x="8" y="20" font-weight="bold">Causal attention, 32 heads of 128, 16,384 tokens '
        "in all, H200: TFLOP/s against the sequence length</text>",
    ]
    for rate in range(0, top + 1, 200):
        out.append(
            f'<line x1="{_LEFT}" y1="{y(rate):.1f}" x2="{_WIDTH - _RIGHT}" y2="{y(rate):.1f}" '
            'stroke="#dddddd"/>'
            f'<text x="{_LEFT - 8}" y="{y(rate) + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{rate:,}</text>"
        )
    out += [
        f'<text x="{x(n):.1f}" y="{_HEIGHT - 28}" text-anchor="middle" fill="#555555">{n:,}</text>'
        for n in lengths
    ]
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x(n):.1f},{y(rate):.1f}" for n, rate in line)
        dash = ' stroke-dasharray="5 4"' if name == "floor" else ""
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{_COLOURS[name]}" stroke-width="2"'
            f'{dash}/><text x="{_LEFT + 16}" y="{_TOP + 16 + 18 * number}" '
            f'fill="{_COLOURS[name]}">{name}</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"
