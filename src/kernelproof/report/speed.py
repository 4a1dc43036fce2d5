"""How near a time comes to what the device can do, and what a device can do: as text."""

from __future__ import annotations

from collections.abc import Sequence

from kernelproof.report import units
from kernelproof.types import Bound, Floors, Limit, Record, Timing

_SHOWN_BOUNDS = 3


def limit_lines(timing: Timing) -> list[str]:
    """Such as "floor 2.1 us (1.7 MB at 4.05 TB/s); reached 37 %", the other bounds, and what is
    suspicious; empty where the floor is not known."""
    limit = timing.limit
    if limit is None:
        return []
    first, *others = limit.bounds
    lines = [f"floor {units.seconds(first.seconds)} ({bound_words(first)}); {reached(limit)}"]
    if others:
        told = (f"{units.seconds(b.seconds)} ({bound_words(b)})" for b in others[:_SHOWN_BOUNDS])
        lines.append(f"other bounds: {', '.join(told)}")
    if limit.suspicious:
        lines.append(f"suspicious: {limit.suspicious}")
    return lines


def reached(limit: Limit) -> str:
    """The share of the floor in the time, in words."""
    return f"reached {units.percent(limit.share)}"


def bound_words(bound: Bound) -> str:
    """What a bound comes of: ``1.7 MB at 4.05 TB/s``."""
    if bound.kind == "call":
        return "one empty call"
    if bound.kind == "memory":
        return f"{units.decimal_size(bound.amount)} at {units.byte_rate(bound.rate)}"
    return f"{units.flops(bound.amount)} of {bound.name} at {units.flop_rate(bound.rate)}"


def floors_text(floors: Floors) -> str:
    """The floors of a device as a table."""
    place = f", {units.many(floors.threads, 'thread')}" if floors.threads else ""
    lines = [
        f"{units.one_line(floors.device)}{place}",
        f"{units.one_line(floors.software)}; measured {floors.measured:%Y-%m-%d %H:%M} UTC in "
        f"{units.seconds(floors.seconds)}",
        "",
        f"empty {'call' if floors.threads else 'launch'}  {units.seconds(floors.call)}",
        f"last cache  {units.size(floors.cache)}",
        "",
        *_bandwidth_table(floors),
        "",
        *_rate_table(floors),
    ]
    lines += [line for note in floors.notes for line in units.wrapped(f"note  {note}", hanging=6)]
    return "\n".join(lines)


def _bandwidth_table(floors: Floors) -> list[str]:
    rows: list[Sequence[str]] = [["bandwidth over", "read", "write", "copy"]]
    for one in floors.bandwidth:
        rates = (units.byte_rate(rate) for rate in (one.read, one.write, one.copied))
        rows.append([units.size(one.size), *rates])
    return units.table(rows, ">>>>")


def _rate_table(floors: Floors) -> list[str]:
    rows: list[Sequence[str]] = [["", "matrix products", "multiply-adds"]]
    for name in dict.fromkeys((*floors.matrix, *floors.vector)):
        rates = (floors.matrix.get(name), floors.vector.get(name))
        rows.append([name, *(units.flop_rate(rate) for rate in rates)])
    return units.table(rows, "<>>")


def sweep_rows(records: Sequence[Record]) -> list[list[str]]:
    """A head and one row a size: time, rates, share of the floor, and the ratio to eager."""
    from kernelproof.report import text

    rows = [["size", "verdict", "time", "bandwidth", "rate", "of floor", "limited by", "vs eager"]]
    for record in records:
        value = str(record.sweep.value) if record.sweep else units.MISSING
        timing = record.timing
        series = text.main_series(timing.candidate, timing) if timing else None
        if timing is None or series is None:
            rows.append([value, record.status, *[units.MISSING] * 6])
            continue
        work, limit = timing.work, timing.limit
        eager = text.ratio_to(timing, "eager", text.main_clock(timing))
        moved = work.bytes / series.median if work and work.bytes else None
        done = work.flops / series.median if work and work.flops else None
        rows.append(
            [
                value,
                record.status,
                units.time_cell(series),
                units.byte_rate(moved),
                units.flop_rate(done),
                units.percent(limit.share) if limit else units.MISSING,
                limit.bounds[0].name if limit else units.MISSING,
                " ".join(units.ratio_cells(eager)).strip() or units.MISSING,
            ]
        )
    return rows
