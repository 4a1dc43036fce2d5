"""A ladder in cells and words, for documents and the page alike."""

from __future__ import annotations

import math
from typing import NamedTuple

from kernelproof.report import units
from kernelproof.types import LadderResults, RungResult

# What a bar stands for: the verdict, and whether the time counts for anything.
KINDS = {
    "pass": "right",
    "holds": "right where timed, not in all cases or not judged",
    "wrong": "wrong: its time counts for nothing",
}


class Bar(NamedTuple):
    """A rung in a plot; ``seconds`` is None where it has no time, and ``note`` says why."""

    rung: str
    kind: str
    seconds: float | None
    low: float
    high: float
    note: str


def bars(rows: tuple[RungResult, ...]) -> list[Bar]:
    """Device times by rung; empty where none was timed."""
    if all(row.device is None for row in rows):
        return []
    return [_bar(row) for row in rows]


def _bar(row: RungResult) -> Bar:
    unjudged = row.status is None and row.right_when_timed
    kind = "pass" if row.status == "pass" else "holds" if row.holds or unjudged else "wrong"
    if row.device is None:
        return Bar(row.rung, kind, None, 0.0, 0.0, f"{row.status or 'not judged'}, not timed")
    low, high = row.interval or (row.device, row.device)
    return Bar(row.rung, kind, row.device, low, high, "")


def eager_seconds(rows: tuple[RungResult, ...]) -> float | None:
    """Device time of the reference, which all rungs were timed beside."""
    times = [row.times["eager"].device for row in rows if "eager" in row.times]
    return next((t for t in times if t is not None), None)


def about(results: LadderResults) -> str:
    """On what the results were made."""
    parts = [results.machine]
    if results.cuda:
        parts.append(f"CUDA {results.cuda}, driver {results.driver or 'unknown'}")
    return ", ".join([*parts, f"torch {results.torch}", results.date])


def commits(results: LadderResults, rows: tuple[RungResult, ...]) -> str:
    """Of kernelproof; with the steps that were done at others."""
    others: dict[str, list[str]] = {}
    for row in rows:
        for step, commit in row.commits.items():
            if commit not in others.setdefault(step, []):
                others[step].append(commit)
    told = [f"{step} at {', '.join(found)}" for step, found in others.items()]
    return f"kernelproof {results.commit}" + (f" ({'; '.join(told)})" if told else "")


def bits(row: RungResult) -> str:
    """Effective bits of the rung and of the reference, in the case that is shown."""
    if row.bits is None or not math.isfinite(row.bits) or row.reference_bits is None:
        return units.MISSING
    return f"{units.bits(row.bits)} ({units.bits(row.reference_bits)})"


def ratio(row: RungResult) -> str:
    """The largest error over what an honest computation may make."""
    found = row.ratio is not None and math.isfinite(row.ratio)
    return f"{row.ratio:.3g}" if found else units.MISSING


def times(row: RungResult) -> list[str]:
    """Device time, cold, per call, eager over it, the best baseline over it, share of the floor,
    and the time to a first result."""
    mine = row.times.get("rung")
    clocks = [mine.device, mine.cold, mine.host] if mine is not None else [None] * 3
    over = [row.over("eager"), row.over(row.baseline)]
    share = units.MISSING
    if row.limit_share is not None and row.limit is not None:
        share = f"{units.percent(row.limit_share)} ({row.limit.name})"
    return [
        *map(units.seconds, clocks),
        *(units.ratio(r.ratio if r is not None else None) for r in over),
        share,
        units.seconds(row.build),
    ]


def resources(row: RungResult) -> list[str]:
    """Registers a thread, shared memory, launch and occupancy of each kernel on an H200."""
    launched = [k for k in row.kernels if k.blocks is not None]
    occupied = [k for k in launched if k.occupancy is not None]
    return [
        ", ".join(str(k.registers) for k in row.kernels) or units.MISSING,
        ", ".join(units.size(k.shared_bytes) for k in launched) or units.MISSING,
        ", ".join(f"{k.blocks} x {k.threads}" for k in launched) or units.MISSING,
        ", ".join(f"{k.occupancy:.0%} ({k.limiter})" for k in occupied) or units.MISSING,
    ]


def sentences(row: RungResult) -> list[str]:
    """What `kernelproof inspect` says of the kernels and of the call."""
    said = [text for kernel in row.kernels for text in kernel.sentences]
    if row.kernels:
        said += row.sentences
    return list(dict.fromkeys(said))


def holds_back(row: RungResult) -> str:
    """The heads of `sentences`."""
    heads = [text.split(":")[0].split(";")[0] for text in sentences(row)]
    return "; ".join(dict.fromkeys(heads))


def said(row: RungResult) -> str:
    """The judge's words, and of a rung that passes what holds it back."""
    return holds_back(row) if row.status in ("pass", None) else words(row)


def words(row: RungResult) -> str:
    """The judge's message, without the element and what a reproduction needs."""
    text = row.message
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
    case = text.split(":")[0]
    return text.split(" that of an honest")[0].split("; ")[-1] + f" the allowance ({case})"
