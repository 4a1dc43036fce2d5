"""Tables and the picture of benchmarks/mla_kv.py's results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from log_plot import log_plot

from kernelproof.report.units import ratio, seconds

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "h200" / "mla_kv.json"
_FLOORS = ROOT / "results" / "h200" / "2026-11-30-floors.json"
_FOUNDING = dict(batch=4, seq=96, model=256, rank=48, kv_heads=4, head_dim=32)
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
    title = "mla_kv, bf16, M 2048, R 512, 16 heads of 128: device time of a call against tokens"
    ticks = [row["tokens"] for row in found[::2]]
    return log_plot(title, lines, _COLOURS, ticks, dashed="roofline")


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
