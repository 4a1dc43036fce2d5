"""Tables of docs/suites.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200"


def level1() -> str:
    """KernelBench's level 1 at full size, each reference as its own candidate."""
    found = _read("kernelbench-level1.json")
    rows = found["rows"]
    lines = ["| | problems | |", "|---|---|---|"]
    for status, count in found["statuses"].items():
        told = "; ".join(
            f"{row['problem'].split()[0].rpartition('/')[2]}: {row['message']}"
            for row in rows if row["status"] == status != "pass"
        )  # fmt: skip
        lines.append(f"| `{status}` | {count} | {told} |")
    if found["left"]:
        lines.append(f"| not reached | {found['left']} | |")
    if found["earlier"]:
        lines.append(
            f"| of those that pass, by an earlier version only | {found['earlier']} | the results "
            "name its commit |"
        )
    passed = [row for row in rows if row["status"] == "pass"]
    largest = max(row["elements"] for row in passed)
    seconds = sorted(row["seconds"] for row in passed)
    refused = sum(not row["compat"] for row in passed if "earlier" not in row)
    lines += [
        f"| largest output that was judged | | {largest / 1e9:.2f} billion elements |",
        "| seconds for a problem, several at a time | | half within "
        f"{seconds[len(seconds) // 2]:.0f}, {seconds[-1]:.0f} at the most |",
        f"| `pass` that KernelBench's own evaluation would refuse | {refused} | |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def two_gpus() -> str:
    """A suite on one H200 and on two; the run on one may have been cut off."""
    found = _read("suite-two-gpus.json")
    count, two = found["candidates"], found["two_gpus_seconds"]
    lines = ["| | one H200 | two |", "|---|---|---|"]
    if "one_gpu_seconds" not in found:
        judged, so_far = found["one_gpu_judged"], found["one_gpu_seconds_so_far"]
        both = [row for row in found["items"] if row["status"][0] is not None]
        one, other = (sum(row["seconds"][n] for row in both) for n in (0, 1))
        lines += [
            f"| {count} candidates, start of the workers included | {judged} in {so_far:.0f} s, "
            f"then cut off | {two:.0f} s |",
            f"| the same verdict | | {found['same_verdicts']} of {judged} |",
            f"| seconds in which these {judged} were judged, added up | {one:.0f} | {other:.0f} |",
        ]  # fmt: skip
        return "\n".join(lines) + "\n"
    one = found["one_gpu_seconds"]
    changes = sorted(abs(row["change"]) for row in found["items"] if "change" in row)
    lines += [
        f"| {count} candidates, start of the workers included | {one:.0f} s "
        f"| {two:.0f} s: {one / two:.2f}x |",
        f"| the same verdict | | {found['same_verdicts']} of {count} |",
        f"| median within 3 % | | {found['within_3_percent']} of {found['timed']} "
        f"(half of them within {changes[len(changes) // 2]:.1%}, the worst {changes[-1]:.1%}) |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())
