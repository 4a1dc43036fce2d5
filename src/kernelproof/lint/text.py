"""A lint report as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from kernelproof.lint.result import Cheat, Report
from kernelproof.report import units

_HEAD = ["cheat", "in", "compat", "proof", "ratio", "passed in"]
_ALIGN = "<<>>><"
_ELASTIC = {5: 12, 0: 36, 1: 8}


def render(report: Report) -> str:
    """Result, findings with what to change, and the table of cheats.

    ``compat`` and ``proof`` count the cases in which that verdict passes the cheat, of those in
    which it was tried; ``ratio`` is the largest proof ratio beside its limit, and ``passed in``
    names the cases that the proof passes.
    """
    blocks = [list(_result(report)), list(_findings(report)), list(_table(report))]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _result(report: Report) -> Iterator[str]:
    name = units.one_line(report.problem)
    errors = sum(finding.level == "error" for finding in report.findings)
    yield f"{name}: " + (f"{units.many(errors, 'error')}" if errors else "clean")
    proof = sum(cheat.accepted for cheat in report.cheats)
    compat = sum(cheat.compat_accepted for cheat in report.cheats)
    tried = units.many(len(report.cheats), "cheat")
    yield (
        f"{tried} tried on {units.many(len(report.cases), 'case')}: "
        f"the proof passes {units.count(proof)}, the compat tolerance {units.count(compat)}"
    )
    for text in report.skipped:
        yield f"left out {units.one_line(text)}"


def _findings(report: Report) -> Iterator[str]:
    for finding in report.findings:
        line = f"{finding.level:<8} {finding.code}: {units.one_line(finding.message)}"
        yield from units.wrapped(line, hanging=9)
        if finding.remedy:
            yield from units.wrapped(f"-> {units.one_line(finding.remedy)}", " " * 9, hanging=3)


def _table(report: Report) -> Iterator[str]:
    if report.cheats:
        rows = [_HEAD, *(_row(cheat, report.limit) for cheat in report.cheats)]
        yield from units.table(rows, _ALIGN, units.WIDTH, _ELASTIC)


def _row(cheat: Cheat, limit: float) -> list[str]:
    # The subject of the other kinds is part of the name already.
    forged = cheat.kind in ("output", "precision") or not cheat.name.endswith("not read")
    shown = forged and cheat.kind not in ("input", "parameter")
    where = "every case" if cheat.accepted else ", ".join(map(units.one_line, cheat.proof))
    total = len(cheat.cases)
    return [
        units.one_line(cheat.name),
        units.one_line(cheat.subject) if shown else "",
        f"{len(cheat.compat)}/{total}",
        f"{len(cheat.proof)}/{total}",
        units.proof(cheat.ratio, limit),
        where,
    ]
