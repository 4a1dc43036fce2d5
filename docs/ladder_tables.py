"""The ladder in tables, words and plots, from results/ladder-cpu.json and h200/ladder.json."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

from kernelproof import ladder
from kernelproof.report.units import seconds, size

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "results" / "ladder-cpu.json"
GPU = ROOT / "results" / "h200" / "ladder.json"
COLOURS = {"pass": "#2e7d32", "holds": "#b26a00", "wrong": "#b3261e"}
_WIDTH, _ROW, _LEFT, _TOP = 860, 22, 250, 34

Row = dict[str, Any]


@functools.cache
def _results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {"rows": []}


def rows(path: Path, problem: str, form: str = "candidate") -> dict[str, Row]:
    """Rung -> its row of one results file."""
    found = _results(path)["rows"]
    return {r["rung"]: r for r in found if r["problem"] == problem and r["form"] == form}


def status(row: Row) -> str:
    return f"**{row['status']}**" if row["status"] != "pass" else "pass"


def bits(row: Row) -> str:
    """Effective bits of the rung and of the reference, in the first case that was judged."""
    mine, theirs = row.get("bits"), row.get("reference_bits")
    if not isinstance(mine, float) or not math.isfinite(mine):
        return "-"
    return f"{mine:.1f} ({theirs:.1f})"


def words(row: Row) -> str:
    """The judge's message, without the element and what a reproduction needs."""
    text = str(row["message"])
    if "It looks as if " in text:
        return text.split("It looks as if ")[1].split(". Smallest")[0].split("; here")[0]
    if "was refused" in text:
        return text.split(": ", 1)[1].split(": raise")[0]
    if "The error is as large" in text:
        return "the error is as large" + text.split("The error is as large")[1].split(":")[0]
    if "elements are NaN" in text:
        count = text.split("(limit 12). ")[1].split(": never")[0]
        return f"{text.split(': ')[0]}: {count}"
    if "The expected ones" in text:
        return "the expected values" + text.split("The expected ones")[1].split(". First")[0]
    return text.split(" that of an honest")[0].split("; ")[-1] + f" the allowance ({_case(text)})"


def _case(text: str) -> str:
    return text.split(":")[0]


def table(problem: str) -> str:
    """A row for each rung: what it must get, and what the judge said, here and on the H200."""
    here, there = rows(CPU, problem), rows(GPU, problem)
    lines = [
        "| rung | verdict | evidence | effective bits (reference) | ratio | registers | "
        "shared memory | blocks x threads | occupancy | the judge; what holds it back |",
        "|" + "---|" * 10,
    ]
    for rung in ladder.rungs(problem):
        if rung.name not in here:
            continue
        row = here[rung.name]
        said = words(row) if row["status"] != "pass" else holds_back(row)
        link = f"[{rung.name}](../candidates/{problem}/{rung.name})"
        cells = [link, status(row), row["evidence"], bits(row), _ratio(row), *resources(row), said]
        lines.append(f"| {' | '.join(cells)} |")
    text = "\n".join(lines) + "\n"
    return text + (f"\n{_gpu_table(problem, there)}" if there else "")


def resources(row: Row) -> list[str]:
    """Registers a thread, shared memory, launch and occupancy of each kernel on an H200."""
    kernels = row.get("kernels") or []
    launched = [k for k in kernels if k["blocks"] is not None]
    return [
        ", ".join(str(k["registers"]) for k in kernels) or "-",
        ", ".join(size(k["shared_bytes"]) for k in launched) or "-",
        ", ".join(f"{k['blocks']} x {k['threads']}" for k in launched) or "-",
        ", ".join(f"{k['occupancy']:.0%} ({k['limiter']})" for k in launched) or "-",
    ]


def holds_back(row: Row) -> str:
    """The heads of what `kernelproof inspect` says of the kernels and of the call."""
    said = [s for kernel in row.get("kernels") or [] for s in kernel["sentences"]]
    if row.get("kernels"):
        said += row.get("sentences") or []
    heads = [text.split(":")[0].split(";")[0] for text in said]
    return "; ".join(dict.fromkeys(heads))


def _ratio(row: Row) -> str:
    value = row.get("ratio")
    return f"{value:.3g}" if isinstance(value, float) and math.isfinite(value) else "-"


def _gpu_table(problem: str, there: dict[str, Row]) -> str:
    about = _results(GPU)
    timed = bool(plot(problem))
    picture = [f"![time of each rung](ladder-{problem}.svg)", ""] if timed else []
    where = f"{about['machine']}, torch {about['torch']}, {about['date']}"
    lines = [
        f"{where}; times of the founding case:" if timed else f"{where}; no rung was timed yet:",
        "",
        *picture,
        "| rung | verdict | `allclose` | bits (reference) | device time | per call | eager / it | "
        "of the floor | first result |",
        "|" + "---|" * 9,
    ]
    for rung in ladder.rungs(problem):
        row = there.get(rung.name)
        if row is not None:
            lines.append(f"| {rung.name} | {' | '.join(_gpu_cells(row))} |")
    return "\n".join(lines) + "\n"


def _gpu_cells(row: Row) -> list[str]:
    def time(name: str) -> str:
        return seconds(row[name]) if row.get(name) is not None else "-"

    ratio = share = "-"
    if row.get("device") and row.get("eager_device"):
        ratio = f"{row['eager_device'] / row['device']:.3g}"
    if row.get("limit_share"):
        share = f"{row['limit_share']:.0%} ({row['limit']})"
    found = status(row) if "status" in row else "-"
    if row.get("status") == "wrong" and row.get("founding") == "pass":
        found = "**wrong**; right at the founding sizes"
    close = "-" if "compat" not in row else "yes" if row["compat"] else "no"
    return [
        found, close, bits(row), time("device"), time("host"), ratio, share, time("build"),
    ]  # fmt: skip


def rung(name: str) -> str:
    """What the judge said of rung "problem/name", for its README."""
    problem, own = name.split("/")
    parts = []
    here, there = rows(CPU, problem).get(own), rows(GPU, problem).get(own)
    for row, about in ((here, _results(CPU)), (there, _results(GPU))):
        if row is None or "status" not in row:
            continue
        how = {"emulated": "without a GPU, emulated", "cpu": "on a CPU"}
        where = how.get(row["evidence"], f"on {about.get('machine')}")
        text = f"{where}: {row['status']}"
        if row["status"] == "pass":
            text += f", {bits(row)} effective bits (the reference's), ratio {_ratio(row)} of 12"
        else:
            text += f": {words(row)}"
        if row.get("device"):
            alone = "" if row["status"] == "pass" else ", right at the founding sizes"
            text += f"{alone}; {seconds(row['device'])} device time"
        parts.append(f"- {text}.")
    return "**What the judge said.**\n\n" + "\n".join(parts) + "\n" if parts else ""


def plots() -> dict[str, str]:
    """File name in docs/ -> SVG, for the problems with times."""
    found = {problem: plot(problem) for problem in ladder.problems()}
    return {f"ladder-{problem}.svg": text for problem, text in found.items() if text}


def plot(problem: str) -> str:
    """Device time on a logarithmic axis, a bar for each rung, coloured by verdict; "" without
    times."""
    there = rows(GPU, problem)
    named = [(r.name, there.get(r.name, {})) for r in ladder.rungs(problem) if r.name in there]
    times = [row["device"] for _, row in named if row.get("device")]
    times += [row["eager_device"] for _, row in named[:1] if row.get("eager_device")]
    if not times:
        return ""
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)
    height = _TOP + _ROW * len(named) + 30

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - 90)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="20" font-weight="bold">{problem}: device time of each rung</text>',
    ]
    for power in range(low, high + 1):
        at = x(10.0**power)
        out.append(
            f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{height - 26}" stroke="#dddddd"/>'
        )
        out.append(
            f'<text x="{at:.1f}" y="{height - 10}" text-anchor="middle" fill="#555555">'
            f"{seconds(10.0**power)}</text>"
        )
    for number, (name, row) in enumerate(named):
        out += _bar(_TOP + _ROW * number, name, row, x, 10.0**low)
    return "\n".join([*out, "</svg>"]) + "\n"


def _bar(top: float, name: str, row: Row, x: Any, first: float) -> list[str]:
    kind = row.get("status", "wrong")
    if kind != "pass":
        kind = "holds" if row.get("device") else "wrong"
    colour = COLOURS[kind]
    label = f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end" fill="{colour}">{name}</text>'
    if not row.get("device"):
        words = "wrong" if row.get("status") == "wrong" else row.get("status", "no time")
        return [label, f'<text x="{_LEFT + 6}" y="{top + 15}" fill="{colour}">{words}</text>']
    end = x(row["device"])
    note = seconds(row["device"]) + (" (founding sizes only)" if kind == "holds" else "")
    return [
        label,
        f'<rect x="{x(first):.1f}" y="{top + 4}" width="{end - x(first):.1f}" height="{_ROW - 8}" '
        f'fill="{colour}"/>',
        f'<text x="{end + 6:.1f}" y="{top + 15}" fill="#333333">{note}</text>',
    ]
