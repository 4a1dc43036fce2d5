"""The board, and two records side by side, as plain text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelproof.report import units
from kernelproof.types import BoardRow, Compared

# Problem, its digest, case, device, baseline.
Place = tuple[str, str, str, str, str]
HEAD = ["rank", "candidate", "time", "ratio", "answer", "record", "made"]


def board(rows: Sequence[BoardRow]) -> str:
    """A table for each problem, case and device."""
    blocks = []
    for (name, digest, case, device, baseline), mine in groups(rows):
        title = f"{name} ({digest[:8]}), case {case}, {units.one_line(device)}: beside {baseline}"
        table = units.table([HEAD, *map(cells, mine)], "><<<<<<", units.WIDTH, {1: 12})
        blocks.append("\n".join([*units.wrapped(title), *table]))
    return "\n\n".join(blocks)


def groups(rows: Sequence[BoardRow]) -> Iterator[tuple[Place, list[BoardRow]]]:
    """The rows of each problem, case and device."""
    for place in dict.fromkeys(map(_place, rows)):
        yield place, [row for row in rows if _place(row) == place]


def compared(found: Compared) -> str:
    """The facts that differ, then the answer."""
    rows = [["", f"a: {found.a.candidate}", f"b: {found.b.candidate}"]]
    rows += [[k, found.a.facts.get(k, "-"), found.b.facts.get(k, "-")] for k in found.differs]
    lines = units.table(rows, "<<<", units.WIDTH, {1: 20, 2: 20})
    same = [k for k in found.a.facts if k not in found.differs]
    lines += units.wrapped(f"alike: {', '.join(same) or 'nothing'}", hanging=2)
    return "\n".join([*lines, "", *_verdict(found)])


def _verdict(found: Compared) -> Iterator[str]:
    if found.faster is None:
        yield f"no answer on speed: {found.why_not}"
    else:
        yield f"b is {found.faster}: by the ratios to {found.by}, each of its own run"


def _place(row: BoardRow) -> Place:
    return row.problem, row.problem_digest, row.case, row.device, row.ratio.baseline


def cells(row: BoardRow) -> list[str]:
    """Under ``HEAD``."""
    ratio, answer = units.ratio_cells(row.ratio)
    made = f"{row.created:%Y-%m-%d}"
    name, time = units.one_line(row.candidate), units.seconds_interval(*row.time)
    return [str(row.rank), name, time, ratio, answer, row.record_id[:8], made]
