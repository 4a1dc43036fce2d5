"""Records as plain text: no colours, so that it reads the same on a terminal and in a file.

``summary`` gives one row a record, ``detail`` all that a person needs to know about one. The
functions without an underscore below them choose what to show; the HTML report uses them as well.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof.report import units
from kernelproof.types import (
    Check,
    Contestant,
    Environment,
    OutputVerdict,
    Ratio,
    Record,
    Run,
    Series,
    Timing,
    Verdict,
)

WIDTH = 110
MEANING = {
    "pass": "computes the same function",
    "wrong": "does not compute the same function",
    "cheat": "does not do the work that it is credited for",
    "compile_error": "does not compile",
    "crash": "raised an exception or died",
    "timeout": "did not answer in time",
    "unsupported": "needs something that this machine does not have",
}

_SHOWN_FAILURES = 3
_SHOWN_LINES = 20
_SUMMARY_HEAD = (
    "problem",
    "candidate",
    "verdict",
    "evidence",
    "bits",
    "like",
    "proof",
    "compat",
    "time",
    "vs eager",
    "vs best other",
)
_SUMMARY_ALIGN = "<<<<><><><<"
_SUMMARY_ELASTIC = (0, 1, 10)


def summary(records: Sequence[Record]) -> str:
    """One aligned row a record under a line of headings, at most ``WIDTH`` columns wide.

    Names that do not fit are cut and end in ``..``. ``bits`` and ``proof`` are the worst of all
    outputs of all runs.
    """
    if not records:
        return "no records"
    rows = [list(_SUMMARY_HEAD), *(_summary_row(record) for record in records)]
    return "\n".join(units.table(rows, _SUMMARY_ALIGN, WIDTH, _SUMMARY_ELASTIC))


def detail(record: Record) -> str:
    """All about one record: status, reason, verdicts, errors, checks, times, machine, next step."""
    sections = (
        _status_section,
        _why_section,
        _verdict_section,
        _error_section,
        _check_section,
        _time_section,
        _environment_section,
        _next_section,
    )
    blocks = (list(section(record)) for section in sections)
    return "\n\n".join("\n".join(block) for block in blocks if block)


# What to show


def output_ratio(output: OutputVerdict) -> float:
    """The proof ratio that decides about one output: the larger one, NaN counting as largest."""
    if math.isnan(output.ratio_rows) or math.isnan(output.ratio_all):
        return math.nan
    return max(output.ratio_rows, output.ratio_all)


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
    ratios = [output_ratio(output) for run in verdict.runs for output in run.outputs]
    return max(ratios, key=lambda value: math.inf if math.isnan(value) else value, default=None)


def fewest_bits(verdict: Verdict) -> float | None:
    """The lowest effective bits of all runs, ``None`` where nothing was compared."""
    values = [
        output.figures.effective_bits
        for run in verdict.runs
        for output in run.outputs
        if output.figures is not None
    ]
    return min(values, key=lambda value: -math.inf if math.isnan(value) else value, default=None)


def failures(verdict: Verdict) -> list[tuple[Run, OutputVerdict | None]]:
    """Each failed output, worst first, then each failed run that has no failed output."""
    found = [(run, output) for run in verdict.runs for output in run.outputs if not output.passed]
    found.sort(key=lambda pair: _badness(pair[1]), reverse=True)
    bare = [
        run
        for run in verdict.runs
        if run.status != "pass" and all(output.passed for output in run.outputs)
    ]
    return [*found, *((run, None) for run in bare)]


def output_lines(run: Run, output: OutputVerdict | None) -> list[str]:
    """Where and how one output failed: case and seed, the worst element, the pattern."""
    where = f"case {units.one_line(run.case)}, seed {run.seed}"
    if output is None:
        return [f"{where}: {units.one_line(run.message) or MEANING[run.status]}"]
    total = math.prod(output.shape)
    dtype = units.one_line(output.dtype).removeprefix("torch.")
    lines = [f"{where}: output {units.one_line(output.name)}, {dtype} {units.shape(output.shape)}"]
    if output.wrong:
        lines[0] += f": {units.count(output.wrong)} of {units.many(total, 'element')} wrong"
        lines.append(
            f"worst at {units.shape(output.worst_index)}: got {units.number(output.worst_got)}, "
            f"expected {units.number(output.worst_expected)}"
        )
    lines += [units.one_line(text) for text in (output.message, run.message) if text.strip()]
    return lines


def reasons(record: Record) -> list[str]:
    """The messages of verdict and build, each once."""
    build = "" if record.status == "pass" else record.build.message
    texts = (units.plain(text).strip() for text in (record.verdict.message, build))
    return list(dict.fromkeys(text for text in texts if text))


def long_details(record: Record) -> list[str]:
    """Compiler lines or tracebacks that belong to a failure, each once; the log if all else lacks."""
    if record.status == "pass":
        return []
    texts = (units.plain(text).strip("\n") for text in (record.verdict.detail, record.build.detail))
    found = list(dict.fromkeys(text for text in texts if text.strip()))
    log = units.plain(record.build.log).strip("\n")
    return found or ([log] if log.strip() else [])


def notes(record: Record) -> list[str]:
    """Remarks on the verdict and on the timing, each once."""
    timing = record.timing.notes if record.timing else ()
    return list(dict.fromkeys(units.one_line(note) for note in (*record.verdict.notes, *timing)))


def main_clock(timing: Timing) -> str:
    """``device`` where the candidate has a device time, else ``host``."""
    return "device" if timing.candidate.device is not None else "host"


def one_clock(timing: Timing) -> bool:
    """Whether device and host are the same clock, as on a CPU: one column then says it all."""
    everyone = (timing.candidate, *timing.baselines, *((timing.floor,) if timing.floor else ()))
    return all(one.device is None or one.device == one.host for one in everyone)


def main_series(contestant: Contestant, timing: Timing) -> Series | None:
    """The samples of the clock that the answers rest on."""
    return contestant.device if main_clock(timing) == "device" else contestant.host


def ratio_to(timing: Timing, baseline: str, clock: str) -> Ratio | None:
    """The ratio to one baseline by one clock."""
    return next((r for r in timing.ratios if (r.baseline, r.clock) == (baseline, clock)), None)


def best_other(timing: Timing) -> Ratio | None:
    """The ratio to the fastest baseline other than eager, by the main clock."""
    clock = main_clock(timing)
    others = [r for r in timing.ratios if r.clock == clock and r.baseline != "eager"]
    return min(others, key=lambda r: r.ratio, default=None)


def achieved(timing: Timing) -> list[str]:
    """What the candidate reached: share of the floor, FLOP/s, bytes/s, as far as they are known."""
    series = main_series(timing.candidate, timing)
    if series is None or not series.median > 0:
        return []
    found = []
    floor = main_series(timing.floor, timing) if timing.floor else None
    if timing.floor and floor and floor.median > 0:
        times = units.ratio(series.median / floor.median)
        name = units.one_line(timing.floor.name)
        found.append(f"{times} the floor ({name}, {units.seconds(floor.median)})")
    if timing.flops is not None:
        rate = units.flop_rate(timing.flops / series.median)
        found.append(f"{rate} ({units.flops(timing.flops)})")
    if timing.bytes is not None:
        rate = units.byte_rate(timing.bytes / series.median)
        found.append(f"{rate} ({units.size(timing.bytes)})")
    return found


def next_command(record: Record) -> str:
    """The command that makes sense after this record."""
    problem, candidate = _shown_path(record.problem.path), _shown_path(_candidate_path(record))
    on_gpu = record.candidate.language.startswith(("cuda", "triton"))
    if record.status == "unsupported":
        return "kernelproof doctor"
    if record.status in ("crash", "timeout") and record.candidate.language.startswith("cuda"):
        return f"kernelproof race {candidate}"
    if record.status != "pass":
        return f"kernelproof check {problem} {candidate}"
    if record.timing is None and record.verdict.evidence in ("device", "cpu"):
        return f"kernelproof bench {problem} {candidate}"
    eager = ratio_to(record.timing, "eager", main_clock(record.timing)) if record.timing else None
    if on_gpu and (eager is None or eager.answer != "FASTER"):
        return f"kernelproof inspect {candidate}"
    name = shlex.quote(f"{units.one_line(record.candidate.name)}.proof.json")
    return f"kernelproof prove {problem} {candidate} -o {name}"


# The sections of `detail`


def _status_section(record: Record) -> Iterator[str]:
    verdict = record.verdict
    candidate, problem = units.one_line(record.candidate.name), units.one_line(record.problem.name)
    yield f"{record.status}: {candidate} {MEANING[record.status]} ({problem})"
    facts = [f"evidence {verdict.evidence}"]
    facts += [f"on {units.one_line(verdict.device)}"] if verdict.device else []
    facts += [f"{units.many(len(verdict.runs), 'run')}"] if verdict.runs else []
    facts += [f"build {units.seconds(record.build.seconds)}"]
    facts += [f"check {units.seconds(verdict.seconds)}"] if verdict.runs else []
    facts += [f"weights {units.one_line(record.build.weights)}"] if record.build.weights else []
    yield ", ".join(facts)


def _why_section(record: Record) -> Iterator[str]:
    if record.status == "pass":
        return
    yield "why"
    for reason in reasons(record):
        yield textwrap.indent(reason, "  ")
    failed = failures(record.verdict)
    for run, output in failed[:_SHOWN_FAILURES]:
        first, *rest = output_lines(run, output)
        yield f"  {first}"
        yield from (f"    {line}" for line in rest)
    if len(failed) > _SHOWN_FAILURES:
        yield f"  and {units.many(len(failed) - _SHOWN_FAILURES, 'more failure')}"
    for text in long_details(record):
        lines = text.split("\n")
        if record.status != "compile_error" and len(lines) > _SHOWN_LINES:
            yield f"    .. {units.many(len(lines) - _SHOWN_LINES, 'earlier line')} in the record"
            lines = lines[-_SHOWN_LINES:]
        yield from (f"    {line}".rstrip() for line in lines)


def _verdict_section(record: Record) -> Iterator[str]:
    verdict = record.verdict
    if not verdict.runs:
        return
    ratio = worst_ratio(verdict)
    proof = f"proof {_yes(verdict.proof)}"
    if ratio is not None:
        proof += f" (worst ratio {units.number(float(f'{ratio:.3g}'))}, limit {verdict.limit:g})"
    bits = f"effective bits {units.bits(fewest_bits(verdict))}"
    if verdict.looks_like:
        bits += f", looks like {units.one_line(verdict.looks_like)}"
    yield f"{proof}   compat {_yes(verdict.compat)}   {bits}"


def _error_section(record: Record) -> Iterator[str]:
    worst = [(run, out) for run, out in worst_outputs(record.verdict) if out.figures is not None]
    if not worst:
        return
    yield "errors against float64, worst run of each output"
    head = ["output", "of", *ERROR_HEAD, "like", "proof", "case"]
    rows = [["  " + head[0], *head[1:]]]
    for run, output in worst:
        ratio = units.proof(output_ratio(output), record.verdict.limit)
        place = f"{units.one_line(run.case)}, seed {run.seed}"
        like = units.one_line(output.looks_like) or units.MISSING
        name = f"  {units.one_line(output.name)}"
        rows.append([name, "candidate", *units.error_cells(output, "figures"), like, ratio, place])
        rows.append(["", "reference", *units.error_cells(output, "reference"), "", "", ""])
    yield from units.table(rows, "<<>>>>><><")


def told_checks(verdict: Verdict) -> list[Check]:
    """The checks to speak of: failed ones, then notes."""
    return [
        check
        for outcome in ("fail", "note")
        for check in verdict.checks
        if check.outcome == outcome
    ]


def _check_section(record: Record) -> Iterator[str]:
    checks, remarks = record.verdict.checks, notes(record)
    if not checks and not remarks:
        return
    counts = {o: sum(check.outcome == o for check in checks) for o in ("pass", "fail", "skip")}
    words = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    parts = [f"{units.count(number)} {words[o]}" for o, number in counts.items() if number]
    yield "checks" + (f": {', '.join(parts)}" if parts else "")
    rows = [
        [f"  {c.outcome}", units.one_line(c.name), units.one_line(c.message)]
        for c in told_checks(record.verdict)
    ]
    if rows:
        yield from units.table(rows, "<<<")
    yield from (f"  note  {remark}" for remark in remarks)


def _time_section(record: Record) -> Iterator[str]:
    timing = record.timing
    if timing is None:
        return
    place = f"case {units.one_line(timing.case)}, {units.one_line(timing.device)}"
    yield f"times per call, median [95 % interval], {place}, {units.many(timing.threads, 'thread')}"
    clock, single = main_clock(timing), one_clock(timing)
    if single:
        head = ["  who", "time", "candidate is", ""]
    else:
        other = "host" if clock == "device" else "device"
        head = ["  who", "device", "host", f"candidate is ({clock})", "", f"({other})", ""]
    rows = [head]
    problems = []
    floors = (timing.floor,) if timing.floor else ()
    for one in (timing.candidate, *timing.baselines, *floors):
        name = units.one_line(one.name) + (" (floor)" if one is timing.floor else "")
        if one.problem:
            problems.append(f"  {name}: no time: {units.one_line(one.problem)}")
        series = (main_series(one, timing),) if single else (one.device, one.host)
        cells = [f"  {name}", *(units.time_cell(each) for each in series)]
        # The candidate and the floor have no ratio, even where a baseline has the same name.
        base = one.name if any(one is each for each in timing.baselines) else ""
        cells += units.ratio_cells(ratio_to(timing, base, clock) if base else None)
        if not single:
            second = ratio_to(timing, base, other) if base else None
            cells += [units.ratio(second.ratio), second.answer] if second else ["", ""]
        rows.append(cells)
    yield from units.table(rows, "<<<<" if single else "<<<<<<<")
    yield from problems
    if timing.candidate.first_call is not None:
        yield f"  first call {units.seconds(timing.candidate.first_call)}"
    yield from (f"  {fact}" for fact in achieved(timing))


def _environment_section(record: Record) -> Iterator[str]:
    yield f"machine  {', '.join(units.environment_facts(record.environment))}"


def _next_section(record: Record) -> Iterator[str]:
    yield f"next     {next_command(record)}"


# Small helpers


def _summary_row(record: Record) -> list[str]:
    verdict, timing = record.verdict, record.timing
    ratio = worst_ratio(verdict)
    row = [
        units.one_line(record.problem.name),
        units.one_line(record.candidate.name),
        record.status,
        verdict.evidence,
        units.bits(fewest_bits(verdict)),
        units.one_line(verdict.looks_like) or units.MISSING,
        units.proof(ratio, verdict.limit),
        _yes(verdict.compat) if verdict.runs else units.MISSING,
    ]
    if timing is None:
        return [*row, units.MISSING, units.MISSING, units.MISSING]
    series = main_series(timing.candidate, timing)
    eager = ratio_to(timing, "eager", main_clock(timing))
    other = best_other(timing)
    return [
        *row,
        units.seconds(series.median if series else None),
        " ".join(units.ratio_cells(eager)).strip() or units.MISSING,
        f"{units.ratio(other.ratio)} {units.one_line(other.baseline)}" if other else units.MISSING,
    ]


def _badness(output: OutputVerdict) -> tuple[bool, float, int]:
    ratio = output_ratio(output)
    return not output.passed, math.inf if math.isnan(ratio) else ratio, output.wrong


def _candidate_path(record: Record) -> str:
    """What a person would type: the folder where the candidate is one, else the file."""
    candidate = record.candidate
    return candidate.folder if Path(candidate.folder).name == candidate.name else candidate.path


def _shown_path(path: str) -> str:
    """``path`` quoted for a shell, relative to the working directory where it lies below it."""
    try:
        path = str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        pass
    return shlex.quote(units.one_line(path))


def _yes(value: bool) -> str:
    return "yes" if value else "no"
