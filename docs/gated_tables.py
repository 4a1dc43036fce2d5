"""Tables and the picture of benchmarks/gated_recurrence.py's results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from log_plot import log_plot
from mla_kv_tables import limits

from kernelproof.report.units import ratio, seconds

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "h200" / "gated_recurrence.json"
_COLOURS = {
    "kernelproof": "#0a7d4b", "flash-linear-attention": "#a04000", "eager": "#3355aa",
    "memory": "#888888",
}  # fmt: skip


def _report() -> dict[str, Any]:
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {"rows": []}


def _medians(row: dict[str, Any]) -> dict[str, float]:
    return {name: statistics.median(times) for name, times in row["seconds"].items()}


def _error(row: dict[str, Any], name: str) -> str:
    return f"{row['errors'][name]:.2g}" if name in row["errors"] else "-"


def _rows(kind: str) -> list[dict[str, Any]]:
    return [row for row in _report()["rows"] if row["kind"] == kind]


def table(kind: str = "target") -> str:
    """Rows of one kind: times, the time that memory takes at the least, and errors."""
    bandwidth, _ = limits()
    lines = [
        "| case | kernel | time | memory | flash-linear-attention | eager | ratio | error "
        "(theirs) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for row in _rows(kind):
        times = _medians(row)
        mine, eager = times.pop("kernelproof"), times.pop("eager", None)
        floor = row["bytes"] / bandwidth
        name, theirs = next(iter(times.items()), ("", None))
        other = f"{seconds(theirs)} ({name})" if theirs else "-"
        if theirs:
            ratios.append(mine / theirs)
        plain = name.removesuffix(", no graph")
        errors = f"{_error(row, 'kernelproof')} ({_error(row, plain)})"
        lines.append(
            f"| {row['name']} | {row['design']} | {seconds(mine)} | {seconds(floor)} | {other} | "
            f"{seconds(eager) if eager else '-'} | {ratio(mine / theirs) if theirs else '-'} | "
            f"{errors} |"
        )
    if kind == "shape" and ratios:
        middle = ratio(statistics.median(ratios))
        lines += ["", f"Median ratio {middle}, largest {ratio(max(ratios))}."]
    lines += _rivals(_rows(kind))
    if host := [row["host_seconds"] for row in _rows(kind) if "host_seconds" in row]:
        lines += ["", f"An eager call of the founding case takes {seconds(host[0])} of the host."]
    return "\n".join(lines) + "\n"


def _rivals(rows: list[dict[str, Any]]) -> list[str]:
    """Which rows have other contenders' times of another run."""
    kept = [row for row in rows if "rivals" in row]
    if not kept:
        return []
    which = "all rows" if len(kept) == len(rows) else f"{len(kept)} of {len(rows)} rows"
    commits = ", ".join(sorted({row["rivals"] for row in kept}))
    return ["", f"In {which} the times of the others are those of an earlier run ({commits})."]


def fp32() -> str:
    """Float32 inputs beside bfloat16 ones of the same sizes."""
    lines = [
        "| case | kernel | time | of bf16 | flash-linear-attention | ratio | error (theirs) |",
        "|---|---|---|---|---|---|---|",
    ]
    half = {row["name"]: _medians(row)["kernelproof"] for row in _rows("target")}
    for row in _rows("fp32"):
        times = _medians(row)
        mine = times.pop("kernelproof")
        name, theirs = next(iter(times.items()), ("", None))
        same = half.get(row["name"].removeprefix("fp32 "))
        lines.append(
            f"| {row['name']} | {row['design']} | {seconds(mine)} | "
            f"{ratio(mine / same) if same else '-'} | "
            f"{f'{seconds(theirs)} ({name})' if theirs else '-'} | "
            f"{ratio(mine / theirs) if theirs else '-'} | "
            f"{_error(row, 'kernelproof')} ({_error(row, name)}) |"
        )
    lines += _rivals(_rows("fp32"))
    return "\n".join(lines) + "\n"


def accuracy() -> str:
    """Errors over families of gates."""
    names = ("kernelproof", "loop", "fused_recurrent_gla", "chunk_gla")
    lines = [
        f"| gates | {' | '.join(names)} | of the loop's |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for row in _rows("accuracy"):
        errors = row["errors"]
        lines.append(
            f"| {row['name']} | {' | '.join(_error(row, name) for name in names)} | "
            f"{ratio(errors['kernelproof'] / errors['loop'])} |"
        )
    return "\n".join(lines) + "\n"


def plot() -> str:
    """Time against the length of the sequence; "" without results."""
    found = _rows("steps")
    if not found:
        return ""
    bandwidth, _ = limits()
    lines: dict[str, list[tuple[int, float]]] = {name: [] for name in _COLOURS}
    for row in found:
        lines["memory"].append((row["steps"], row["bytes"] / bandwidth))
        for name, time in _medians(row).items():
            line = name if name in lines else "flash-linear-attention"
            lines[line].append((row["steps"], time))
    title = "gated_recurrence, bf16, key gate, 16 heads of 128 x 128: device time against steps"
    lines = {name: line for name, line in lines.items() if line}
    ticks = [row["steps"] for row in found[::2]]
    return log_plot(title, lines, _COLOURS, ticks, dashed="memory")
