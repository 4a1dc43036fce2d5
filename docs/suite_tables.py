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
    passed = [row for row in rows if row["status"] == "pass"]
    largest = max(row["elements"] for row in passed)
    seconds = sorted(row["seconds"] for row in passed)
    refused = sum(not row["compat"] for row in passed if "compat" in row)
    versions = len({row["commit"] for row in rows})
    lines += [
        f"| largest output that was judged | | {largest / 1e9:.2f} billion elements |",
        "| seconds for a problem, several at a time | | half within "
        f"{seconds[len(seconds) // 2]:.0f}, {seconds[-1]:.0f} at the most |",
        f"| `pass` that KernelBench's own evaluation would refuse | {refused} | |",
        f"| versions that judged them | {versions} | the results name the commit of each |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def two_gpus() -> str:
    """A suite on one H200 and on two, which may be runs of different days; either may have been cut
    off."""
    found = _read("suite-two-gpus.json")
    halves = [found["halves"][name] for name in ("one", "two")]
    compared = found["items"]
    lines = ["| | one H200 | two |", "|---|---|---|"]
    lines.append(_row("run", [half["created"][:16] for half in halves]))
    told = [_half(half) for half in halves]
    lines.append(_row("candidates, start of the workers included", told))
    if found["speedup"] is not None:
        seconds = [f"{until:.0f} s" for until in found["until"]]
        seconds[1] += f": {found['speedup']:.2f}x"
        lines.append(_row(f"until the first {found['first']} were judged", seconds))
    sums = [f"{sum(row['seconds'][n] for row in compared):.0f}" for n in (0, 1)]
    lines.append(_row(f"seconds in which the same {len(compared)} were judged, added up", sums))
    lines.append(_row("the same verdict", ["", f"{found['same_verdicts']} of {len(compared)}"]))
    of_host = {name for name, row in halves[0]["items"].items() if row["clock"] == "host"}
    timed = [row for row in compared if "change" in row]
    for clock in ("device", "host"):
        chosen = [row for row in timed if (row["item"] in of_host) == (clock == "host")]
        changes = sorted(abs(row["change"]) for row in chosen)
        if changes:
            lines.append(_row(f"median of the {clock}'s clock within 3 %", ["", _near(changes)]))
    return "\n".join(lines) + "\n"


def one_gpu() -> str:
    """The same candidates on one H200, in the run beside two and in a later one."""
    before, after = (
        _read(name)["halves"]["one"] for name in ("suite-two-gpus.json", "suite-one-gpu.json")
    )
    old, new = before["items"], after["items"]
    both = sorted(old.keys() & new.keys())
    told = [f"{half['created'][:10]}, {half['environment']['commit']}" for half in (before, after)]
    lines = [f"| seconds, added up | {told[0]} | {told[1]} |", "|---|---|---|"]
    known = ("pass", "wrong")
    for title, chosen in (
        *((f"`{status}`", [n for n in both if new[n]["status"] == status]) for status in known),
        ("others", [n for n in both if new[n]["status"] not in known]),
        ("all", both),
    ):
        sums = [f"{sum(half[n]['seconds'] for n in chosen):.1f}" for half in (old, new)]
        lines.append(_row(f"{title}: {len(chosen)}", sums))
    gaps = [_between(half) for half in (before, after)]
    lines.append(_row("from one item to the next", [f"{gap * 1e3:.0f} ms" for gap in gaps]))
    same = sum(old[n]["status"] == new[n]["status"] for n in both)
    lines.append(_row("the same verdict", ["", f"{same} of {len(both)}"]))
    changes = sorted(
        abs(new[n]["time"][0] / old[n]["time"][0] - 1)
        for n in both
        if new[n]["time"] and old[n]["time"] and new[n]["clock"] == "device"
    )
    lines.append(_row("median of the device's clock within 3 %", ["", _near(changes)]))
    return "\n".join(lines) + "\n"


def _near(changes: list[float]) -> str:
    """How many of ``changes``, in order of size, are small, in words."""
    near, half = sum(change <= 0.03 for change in changes), changes[len(changes) // 2]
    told = f"{near} of {len(changes)} (half of them within {half:.1%}, the worst "
    return f"{told}{changes[-1]:.1%})"


def _between(half: dict[str, Any]) -> float:
    """Seconds from the end of an item to the start of the next, on average."""
    rows = sorted(half["items"].values(), key=lambda row: row["since"])
    busy = sum(row["seconds"] for row in rows[1:])
    return float((rows[-1]["since"] - rows[0]["since"] - busy) / (len(rows) - 1))


def _half(half: dict[str, Any]) -> str:
    judged, count = len(half["items"]), half["count"]
    if "seconds" in half:
        return f"{judged} in {half['seconds']:.0f} s"
    so_far = half.get("so_far") or max((row["since"] for row in half["items"].values()), default=0)
    return f"{judged} of {count} in {so_far:.0f} s, then cut off"


def _row(title: str, cells: list[str]) -> str:
    return f"| {title} | {' | '.join(cells)} |"


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())
