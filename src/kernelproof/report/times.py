"""What a timing tells beside the main table: other clocks, what happened once, and under which
conditions. Rows and lines for text and HTML alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelproof.report import units
from kernelproof.types import Conditions, Contestant, GpuState, Ratio, Timing

# Clock -> its heading, and whether its ratio is shown.
_CLOCKS = {"cold": ("cold (L2 flushed)", True), "single": ("single call", False)}
_CPU_CLOCKS = {"warm": ("warm (repeated)", True)}


def lines(timing: Timing, named: Sequence[tuple[Contestant, str]]) -> Iterator[str]:
    """All of it as text.

    Args:
        named: everyone timed, with the role of those that are no baseline.
    """
    for rows in (clock_rows(timing, named), once_rows(named)):
        if rows:
            yield ""
            yield from units.table(rows, "<" * len(rows[0]), indent="  ")
    for line in condition_lines(timing.conditions):
        yield from units.wrapped(line, "  ")


def clock_rows(timing: Timing, named: Sequence[tuple[Contestant, str]]) -> list[list[str]]:
    """A head and one row a contestant, of the clocks that the main table does not show; empty where
    nobody has such times."""
    clocks = {**_CLOCKS, **_CPU_CLOCKS}
    there = [c for c in clocks if any(getattr(one, c) is not None for one, _ in named)]
    if not there:
        return []
    head = [""]
    for clock in there:
        title, shown = clocks[clock]
        head += [title, "ratio", "answer"] if shown else [title]
    rows = [head]
    for one, role in named:
        row = [role or units.one_line(one.name)]
        for clock in there:
            row.append(units.time_cell(getattr(one, clock)))
            if clocks[clock][1]:
                row += units.ratio_cells(None if role else _ratio(timing, one.name, clock))
        rows.append(row)
    return rows


def once_rows(named: Sequence[tuple[Contestant, str]]) -> list[list[str]]:
    """A head and one row a contestant: what it took once. Empty where nothing of it is known."""
    known = [(one, role) for one, role in named if one.build is not None]
    if not known:
        return []
    rows = [["once", "build", "construction", "first call"]]
    for one, role in known:
        times = (one.build, one.construction, one.first_call)
        rows.append([role or units.one_line(one.name), *map(units.seconds, times)])
    return rows


def condition_lines(conditions: Conditions | None) -> list[str]:
    """What machine and GPU were doing."""
    if conditions is None:
        return []
    places = units.many(len(conditions.processors), "processor")
    text = f"{units.many(conditions.threads, 'thread')} on {places}"
    if conditions.load_before is not None and conditions.load_during is not None:
        text += f", load average {conditions.load_before:.2g} before"
        text += f" and at most {conditions.load_during:.2g} during the rounds"
    found = [f"conditions: {text}"]
    if conditions.gpu:
        found.append(f"GPU between rounds: {', '.join(_gpu(conditions.gpu))}")
    return found


def _gpu(states: Sequence[GpuState]) -> Iterator[str]:
    for name, unit in (("sm_clock", "MHz"), ("memory_clock", "MHz"), ("temperature", "C"),
                       ("power", "W")):  # fmt: skip
        values = [v for v in (getattr(state, name) for state in states) if v is not None]
        if values:
            least, most = round(min(values)), round(max(values))
            span = f"{least}" if least == most else f"{least} to {most}"
            yield f"{name.replace('sm_', 'SM ').replace('_', ' ')} {span} {unit}"
    held = sum(bool(state.throttled) for state in states)
    yield f"clocks held back in {held} of {units.many(len(states), 'round')}"


def _ratio(timing: Timing, baseline: str, clock: str) -> Ratio | None:
    found = (r for r in timing.ratios if r.baseline == baseline and r.clock == clock)
    return next(found, None)
