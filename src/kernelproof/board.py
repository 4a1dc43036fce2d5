"""What the store knows, in order: the board, two records side by side, records out and in."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof import outfile
from kernelproof.errors import UsageError
from kernelproof.report import units
from kernelproof.report.text import main_clock, main_series, ratio_to
from kernelproof.report.verdicts import fewest_bits, worst_ratio
from kernelproof.store import Store, json_text, read_json
from kernelproof.types import BoardRow, Compared, Comparison, Ratio, Record, Side


def board(
    problem: str | None = None, baseline: str = "eager", *, store: str | None = None
) -> tuple[BoardRow, ...]:
    """Candidates that passed and were timed beside ``baseline``, by problem, case and device, the
    fastest beside it first. Of a candidate with several records the newest counts: a lucky one does
    not stay."""
    groups: dict[tuple[str, ...], dict[str, BoardRow]] = {}
    for record in Store(store).timed(problem):
        row = _row(record, baseline)
        if row is None:
            continue
        sizes = json.dumps(record.problem.sizes, sort_keys=True)
        key = (row.problem, row.problem_digest, sizes, row.case, row.device)
        held = groups.setdefault(key, {}).get(row.digest)
        if held is None or held.created < row.created:
            groups[key][row.digest] = row
    return tuple(row for key in sorted(groups) for row in _ranked(list(groups[key].values())))


def compare(a: str, b: str, *, store: str | None = None) -> Compared:
    """Two records: each the beginning of an id in the store, or a JSON file of records or a proof,
    of which the last record counts.

    Raises:
        UsageError: there is no such record, or more than one.
    """
    first, second = (_found(text, store) for text in (a, b))
    sides = [Side(record_id=r.id, candidate=r.candidate.name, facts=dict(_facts(r)))
             for r in (first, second)]  # fmt: skip
    keys = dict.fromkeys([*sides[0].facts, *sides[1].facts])
    differs = tuple(k for k in keys if sides[0].facts.get(k) != sides[1].facts.get(k))
    faster, by, why_not = _faster(first, second)
    return Compared(a=sides[0], b=sides[1], differs=differs, faster=faster, by=by, why_not=why_not)


def export(
    path: Path, ids: Sequence[str] = (), problem: str | None = None, *, store: str | None = None
) -> int:
    """Write records as JSON, those of ``ids`` or all; how many. Raises UsageError."""
    kept = Store(store)
    found = [kept.get(one) for one in ids] if ids else kept.latest(None, problem)
    if not found:
        raise UsageError(f"{kept.url} has no such records; nothing was written")
    outfile.write(path, json_text(found))
    return len(found)


def import_(paths: Sequence[Path], *, store: str | None = None) -> tuple[int, int]:
    """Add the records of JSON files; how many were new, and how many there already."""
    kept = Store(store)
    records = [record for path in paths for record in read_json(path)]
    new = sum(kept.add(record) for record in records)
    return new, len(records) - new


def _row(record: Record, baseline: str) -> BoardRow | None:
    timing, made = record.timing, record.environment
    if timing is None:
        return None
    clock = main_clock(timing)
    series, ratio = main_series(timing.candidate, timing), ratio_to(timing, baseline, clock)
    if series is None or ratio is None:
        return None
    place = (
        made.gpu if timing.device != "cpu" else f"{made.cpu}, {units.many(made.threads, 'thread')}"
    )
    return BoardRow(
        problem=record.problem.name, problem_digest=record.problem.digest, case=timing.case,
        device=place, rank=0, candidate=record.candidate.name, digest=record.candidate.digest,
        ratio=ratio, time=(series.median, series.low, series.high), record_id=record.id,
        created=record.created,
    )  # fmt: skip


def _ranked(rows: list[BoardRow]) -> Iterator[BoardRow]:
    first: BoardRow | None = None
    rank = 0
    for place, row in enumerate(sorted(rows, key=lambda r: -r.ratio.ratio), 1):
        if first is None or row.ratio.high < first.ratio.low:
            first, rank = row, place
        yield row.model_copy(update={"rank": rank})


def _found(text: str, store: str | None) -> Record:
    path = Path(text)
    if not path.is_file():
        return Store(store).get(text)
    from kernelproof import proof_file

    body = json.loads(path.read_text()) if path.suffix == ".json" else None
    if isinstance(body, dict) and "record" in body:
        proof = proof_file.read(path)
        if proof.proof is None or proof.edited:
            raise UsageError(f"{path} is a proof that was edited; `kernelproof verify` says how")
        return proof.proof.record
    records = read_json(path)
    if not records:
        raise UsageError(f"{path} holds no records")
    return records[-1]


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    verdict, timing, made = record.verdict, record.timing, record.environment
    yield "problem", f"{record.problem.name} ({record.problem.digest[:12]})"
    yield "sources", record.candidate.digest[:12]
    yield "status", record.status
    yield "evidence", verdict.evidence
    yield "error over budget", units.proof(worst_ratio(verdict), verdict.limit)
    yield "effective bits", units.bits(fewest_bits(verdict))
    yield "compat", "yes" if verdict.compat else "no"
    failed = ", ".join(check.name for check in verdict.checks if check.outcome == "fail")
    yield "failed checks", failed or "none"
    yield "device", made.gpu if timing is not None and timing.device != "cpu" else made.cpu
    yield "torch", made.torch
    yield "kernelproof", made.kernelproof
    if record.inspection is not None:
        for kernel in record.inspection.kernels:
            yield f"registers of {kernel.name}", str(kernel.registers)
    if timing is None:
        return
    yield "case", timing.case
    series = main_series(timing.candidate, timing)
    yield "time", units.time_cell(series)
    for baseline in timing.baselines:
        ratio = ratio_to(timing, baseline.name, main_clock(timing))
        if ratio is not None:
            yield f"beside {baseline.name}", " ".join(units.ratio_cells(ratio))


def _faster(a: Record, b: Record) -> tuple[Comparison | None, str, str]:
    if a.timing is None or b.timing is None:
        return None, "", "not both were timed"
    if a.problem.digest != b.problem.digest or a.problem.sizes != b.problem.sizes:
        return None, "", "they are of different problems"
    if a.timing.case != b.timing.case:
        return None, "", f"they were timed on {a.timing.case} and {b.timing.case}"
    places = [(r.environment.cpu, r.environment.threads) if r.timing.device == "cpu"  # type: ignore[union-attr]
              else (r.environment.gpu, 0) for r in (a, b)]  # fmt: skip
    if places[0] != places[1]:
        return None, "", f"they were timed on {places[0][0]} and {places[1][0]}"
    for baseline in a.timing.baselines:
        one = ratio_to(a.timing, baseline.name, main_clock(a.timing))
        other = ratio_to(b.timing, baseline.name, main_clock(b.timing))
        if one is not None and other is not None:
            return _answer(one, other), baseline.name, ""
    return None, "", "they have no baseline in common"


def _answer(one: Ratio, other: Ratio) -> Comparison:
    """Of ``other``, the ratio of the second: larger is faster."""
    if one.low <= other.high and other.low <= one.high:
        return "SAME"
    return "FASTER" if other.ratio > one.ratio else "SLOWER"
