"""What to show of a verdict: its worst figures, failures, checks and reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kernelproof.report import units
from kernelproof.types import Check, OutputVerdict, Record, Run, Verdict

ERROR_COLUMNS = ["output", "of", *units.ERROR_HEAD, "like", "proof", "case"]


def output_ratio(output: OutputVerdict) -> float | None:
    """The proof ratio that decides about one output: the larger one, NaN counting as largest;
    ``None`` where no errors were taken, as for a wrong shape."""
    if output.figures is None:
        return None
    return _worst((output.ratio_rows, output.ratio_all))


def worst_outputs(verdict: Verdict) -> list[tuple[Run, OutputVerdict]]:
    """For each output name, in order of appearance, the run in which it did worst."""
    worst: dict[str, tuple[Run, OutputVerdict]] = {}
    for run in verdict.runs:
        for output in run.outputs:
            held = worst.get(output.name)
            if held is None or _badness(output) > _badness(held[1]):
                worst[output.name] = (run, output)
    return list(worst.values())


def worst_ratio(verdict: Verdict) -> float | None:
    """The largest proof ratio of all runs, ``None`` where nothing was compared."""
    ratios = (output_ratio(output) for run in verdict.runs for output in run.outputs)
    return _worst(ratio for ratio in ratios if ratio is not None)


def fewest_bits(verdict: Verdict) -> float | None:
    """The lowest effective bits of all runs, ``None`` where nothing was compared."""
    outputs = (output for run in verdict.runs for output in run.outputs)
    values = [output.figures.effective_bits for output in outputs if output.figures]
    return min(values, key=lambda value: -math.inf if math.isnan(value) else value, default=None)


def failures(verdict: Verdict) -> list[tuple[Run, OutputVerdict | None]]:
    """Each failed output, worst first, then each failed run that has no failed output."""
    found = [(run, output) for run in verdict.runs for output in run.outputs if not output.passed]
    found.sort(key=lambda pair: _badness(pair[1]), reverse=True)
    told = {id(run) for run, _ in found}
    bare = (run for run in verdict.runs if run.status != "pass" and id(run) not in told)
    return [*found, *((run, None) for run in bare)]


def error_rows(verdict: Verdict) -> list[list[str]]:
    """Rows under ``ERROR_COLUMNS``: two an output, the candidate's figures above those of the
    reference, from the run in which the candidate did worst."""
    rows = []
    for run, output in worst_outputs(verdict):
        if output.figures is None:
            continue
        ratio = units.proof(output_ratio(output), verdict.limit)
        like = units.one_line(output.looks_like) or units.MISSING
        name, place = units.one_line(output.name), f"{units.one_line(run.name)}, seed {run.seed}"
        rows.append([name, "candidate", *units.error_cells(output.figures), like, ratio, place])
        rows.append(["", "reference", *units.error_cells(output.reference), "", "", ""])
    return rows


def told_checks(verdict: Verdict) -> list[Check]:
    """The checks to speak of: failed ones, then notes."""
    told = (check for check in verdict.checks if check.outcome in ("fail", "note"))
    return sorted(told, key=lambda check: check.outcome)


def check_counts(verdict: Verdict) -> str:
    """How many checks passed, failed and were skipped."""
    words = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    counts = {o: sum(check.outcome == o for check in verdict.checks) for o in words}
    return ", ".join(f"{units.count(n)} {words[o]}" for o, n in counts.items() if n)


def failure_lines(record: Record) -> list[list[str]]:
    """For each failure a line with its place and lines that say how it failed, without those that
    ``reasons`` has already."""
    told = "\n".join(units.one_line(reason) for reason in reasons(record))
    every = (_failure(run, output) for run, output in failures(record.verdict))
    return [[first, *(line for line in rest if line not in told)] for first, *rest in every]


def _failure(run: Run, output: OutputVerdict | None) -> list[str]:
    where = f"case {units.one_line(run.name)}, seed {run.seed}"
    message = units.one_line(run.message)
    if output is None:
        return [f"{where}: {units.MEANING[run.status]}", message]
    dtype = units.one_line(output.dtype).removeprefix("torch.")
    lines = [f"{where}: {units.one_line(output.name)}, {dtype} {units.shape(output.shape)}"]
    if output.wrong:
        total = units.many(math.prod(output.shape), "element")
        lines[0] += f": {units.count(output.wrong)} of {total} wrong"
    own, index = units.one_line(output.message), units.shape(output.worst_index)
    # A message often names the worst element itself, and a run often repeats its output's message.
    if (output.wrong or output.figures) and index not in own:
        got, expected = units.number(output.worst_got), units.number(output.worst_expected)
        lines.append(f"worst at {index}: got {got}, expected {expected}")
    return [*lines, own] if own and own in message else [*lines, own, message]


def reasons(record: Record) -> list[str]:
    """The messages of verdict and build, each once."""
    build = "" if record.status == "pass" else record.build.message
    texts = (units.plain(text).strip() for text in (record.verdict.message, build))
    return list(dict.fromkeys(text for text in texts if text))


def long_details(record: Record) -> list[str]:
    """Compiler lines or tracebacks that belong to a failure, each once; else the log."""
    if record.status == "pass":
        return []
    texts = (units.plain(text).strip("\n") for text in (record.verdict.detail, record.build.detail))
    found = list(dict.fromkeys(text for text in texts if text.strip()))
    log = units.plain(record.build.log).strip("\n")
    return found or ([log] if log.strip() else [])


def _worst(ratios: Iterable[float]) -> float | None:
    return max(ratios, key=lambda ratio: math.inf if math.isnan(ratio) else ratio, default=None)


def _badness(output: OutputVerdict) -> tuple[bool, float, int]:
    ratio = output_ratio(output)
    if ratio is None or math.isnan(ratio):
        ratio = 0.0 if output.passed else math.inf
    return not output.passed, ratio, output.wrong
