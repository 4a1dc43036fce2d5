"""Tables of sessions and proofs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernelproof.report.units import seconds, size

ROOT = Path(__file__).resolve().parents[1]
_PLACES = {"cpu": "CPU", "cuda": "GPU"}


def session_times() -> str:
    """Seconds to a verdict, by device and way of working."""
    body = json.loads((ROOT / "results" / "session-times.json").read_text())
    lines = [
        "| candidate | machine | calls | first verdict | least | unchanged | least | rounds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for found in body.values():
        env = found["environment"]
        where = f"{env['gpu'] if found['device'] == 'cuda' else env['cpu']}, {env['cores']} cores"
        note = f" ({found['note']})" if found["note"] else ""
        for way, one in found["ways"].items():
            cells = [seconds(one[k]) for k in ("first", "first, least", "again", "again, least")]
            row = [found["how"], f"{where}{note}", way, *cells, str(one["rounds"])]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def session_judge() -> str:
    """What the judge that stays up holds, and what asking it takes."""
    body = json.loads((ROOT / "results" / "session-times.json").read_text())
    lines = [
        "| machine | its process | its server of workers | on the GPU | a refused command |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for found in body.values():
        env, one = found["environment"], found["ways"].get("commands")
        if one is None:
            continue
        where = f"{env['gpu'] if found['device'] == 'cuda' else env['cpu']}, {env['cores']} cores"
        cells = [size(one[k]) for k in ("judge", "server")]
        # Where other jobs had the GPU too, what is in use tells nothing of this one.
        alone = found["device"] == "cuda" and "on the GPU" not in found["note"]
        cells.append(size(one["gpu"]) if alone else "-")
        lines.append(f"| {' | '.join([where, *cells, seconds(one['asking'])])} |")
    return "\n".join(lines) + "\n"


def parallel_sessions() -> str:
    """Sessions that were driven at the same time, and what of them was lost or mixed."""
    body = json.loads((ROOT / "results" / "parallel-sessions.json").read_text())
    lines = [
        "| store | machine | sessions | calls | records | lost or mixed | took |",
        "|---|---|---|---|---|---|---|",
    ]
    for database, one in body.items():
        env = one["environment"]
        row = [database, f"{env['cpu']}, {env['cores']} cores", str(one["sessions"])]
        row += [str(one["calls"]), str(one["records"]), str(len(one["differences"]))]
        lines.append(f"| {' | '.join([*row, seconds(one['seconds'])])} |")
    return "\n".join(lines) + "\n"


def proofs() -> str:
    """Where proofs were made and verified."""
    rows: list[dict[str, Any]] = json.loads((ROOT / "results" / "proofs.json").read_text())
    lines = [
        "| proof | made on | verified on | answer | edits noticed |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        gpu = row["device"] != "cpu"
        made, here = (_machine(row[side], gpu) for side in ("made", "here"))
        other = {True: ", another one", False: ", the same one", None: ""}[row["other_gpu"]]
        edits = f"{row['noticed']} of {row['flipped']}"
        name = f"`{row['candidate']}` ({row['problem']}, {_PLACES['cuda' if gpu else 'cpu']})"
        lines.append(f"| {name} | {made} | {here}{other} | {row['answer']} | {edits} |")
    return "\n".join(lines) + "\n"


def _machine(environment: dict[str, Any], gpu: bool) -> str:
    name = environment["cpu"]
    if gpu:
        name = environment["gpu"] or f"no GPU ({name})"
    return f"{name}, torch {environment['torch']}"


def operator_proofs(operator: str) -> str:
    """Runs of an operator's proofs, and the largest error in units of an honest one."""
    found = json.loads((ROOT / "results" / "operator-proofs.json").read_text())
    found = [row for row in found if row["problem"].startswith(operator)]
    tiers = any(row["accuracy"] for row in found)
    head = ["problem", *(["accuracy"] if tiers else []), "on", "cases", "runs that pass"]
    head += ["error / honest error", "limit"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in found:
        cells = [row["problem"], *([row["accuracy"]] if tiers else [])]
        cells += [f"{row['machine']} ({row['device']})", str(len(row["cases"]))]
        cells += [f"{row['passed']:,} of {row['runs']:,}", f"{row['worst']:.2f}"]
        lines.append("| " + " | ".join([*cells, f"{row['limit']:g}"]) + " |")
    return "\n".join(lines) + "\n"
