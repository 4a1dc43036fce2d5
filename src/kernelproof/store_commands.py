"""`kernelproof board`, `compare`, `export` and `import`: what the store has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from kernelproof.arguments import JsonOpt, StoreOpt
from kernelproof.commands import print_json
from kernelproof.errors import UsageError

RecordArg = Annotated[
    str, typer.Argument(help="How a record's id begins, or a JSON file of records or a proof.")
]


def board(
    problem: Annotated[str | None, typer.Argument(help="Only of this problem.")] = None,
    baseline: Annotated[str, typer.Option(help="Ranked by the time beside this.")] = "eager",
    json_: JsonOpt = False,
    store: StoreOpt = None,
) -> None:
    """Show the best records of each problem, case and device; what cannot be told apart shares a
    rank."""
    from kernelproof import board as boards
    from kernelproof.report.board import board as shown

    rows = boards.board(problem, baseline, store=store)
    if json_:
        print_json({"rows": [json.loads(row.model_dump_json()) for row in rows]})
    elif rows:
        print(shown(rows))
    else:
        of = f" of {problem}" if problem else ""
        raise UsageError(
            f"no timed record{of} beside {baseline!r}: run `kernelproof bench PROBLEM CANDIDATE`"
        )


def compare(a: RecordArg, b: RecordArg, json_: JsonOpt = False, store: StoreOpt = None) -> None:
    """Show two records side by side: what differs, and which is faster."""
    from kernelproof import board as boards
    from kernelproof.report.board import compared

    found = boards.compare(a, b, store=store)
    print(compared(found)) if not json_ else print_json(json.loads(found.model_dump_json()))


def export(
    file: Annotated[Path, typer.Argument(help="The JSON file to write.")],
    record: Annotated[
        list[str] | None, typer.Option(help="Only this record; repeatable. Default: all.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Only of this problem.")] = None,
    store: StoreOpt = None,
) -> None:
    """Write records of the store as JSON, for another store or a report."""
    from kernelproof import board as boards
    from kernelproof.report.units import many

    count = boards.export(file, record or (), problem, store=store)
    print(f"{many(count, 'record')} written to {file}")


def import_(
    files: Annotated[list[Path], typer.Argument(help="JSON files of records.")],
    store: StoreOpt = None,
) -> None:
    """Add records from JSON files to the store; one that is there already stays."""
    from kernelproof import board as boards
    from kernelproof.report.units import many

    new, known = boards.import_(files, store=store)
    print(f"{many(new, 'record')} added, {known} there already")
