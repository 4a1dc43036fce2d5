"""Records as plain text: no colours, so that it reads the same on a terminal and in a file.

``summary`` gives one row a record, ``detail`` all that a person needs to know about one. The
functions without an underscore below them choose what to show; the HTML report uses them as well.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernelproof.report import inspection, speed, times, units, verdicts
from kernelproof.types import (
    Contestant,
    Ratio,
    Record,
    Series,
    Timing,
)

_YES = {True: "yes", False: "no"}
_SHOWN_FAILURES = 3
_SHOWN_LINES = 20
SUMMARY_HEAD = ["problem", "candidate", "verdict", "evidence", "bits", "like", "proof"]
SUMMARY_HEAD += ["compat", "time", "vs eager", "best other"]
_SUMMARY_ALIGN = "<<<<><><><<"
# The columns that may be cut, first to last, and to how many characters.
_SUMMARY_ELASTIC = {0: 8, 1: 12, 5: 5}


def summary(records: Sequence[Record], width: int = units.WIDTH) -> str:
    """One aligned row a record under a line of headings, at most ``width`` columns wide.

    Names that do not fit lose their middle, the best other baseline its name. ``bits`` and
    ``proof`` are the worst of all outputs of all runs.
    """
    if not records:
        return "no records"
    rows = [SUMMARY_HEAD, *(summary_row(record) for record in records)]
    if sum(units.column_widths(rows, len(SUMMARY_HEAD))) + len(SUMMARY_HEAD) > width:
        rows = [[*row[:-1], row[-1].split()[0]] for row in rows]
    return "\n".join(units.table(rows, _SUMMARY_ALIGN, width, _SUMMARY_ELASTIC))


def detail(record: Record) -> str:
    """All about one record: status, reason, verdicts, errors, checks, times, machine, next step."""
    sections = (_status, _why, _errors, _checks, _times)
    blocks = ["\n".join(section(record)) for section in sections]
    blocks.append("\n".join(inspection.lines(record.inspection)))
    facts = f"machine  {', '.join(units.environment_facts(record.environment))}"
    blocks.append("\n".join(units.wrapped(facts, hanging=9)))
    blocks.append(f"next     {next_command(record)}")
    return "\n\n".join(block for block in blocks if block)


# What to show


def summary_row(record: Record) -> list[str]:
    """The cells under ``SUMMARY_HEAD``."""
    verdict, timing = record.verdict, record.timing
    row = [
        units.one_line(record.problem.name),
        units.one_line(record.candidate.name),
        record.status,
        verdict.evidence,
        units.bits(verdicts.fewest_bits(verdict)),
        units.precision(verdict.looks_like) or units.MISSING,
        units.proof(verdicts.worst_ratio(verdict), verdict.limit),
        _YES[verdict.compat] if verdict.runs else units.MISSING,
    ]
    if timing is None:
        return [*row, units.MISSING, units.MISSING, units.MISSING]
    best, taken = best_other(timing), main_series(timing.candidate, timing)
    eager = " ".join(units.ratio_cells(ratio_to(timing, "eager", main_clock(timing)))).strip()
    name = units.one_line(best.baseline).removeprefix("torch.") if best else ""
    other = f"{units.ratio(best.ratio)} {name}" if best else ""
    row += [units.seconds(taken.median if taken else None), eager, other]
    return [cell or units.MISSING for cell in row]


def status_facts(record: Record) -> str:
    """On what the verdict rests and what it took."""
    verdict, build = record.verdict, record.build
    facts = [f"evidence {verdict.evidence}"]
    if verdict.device not in ("", verdict.evidence):
        facts.append(f"on {units.one_line(verdict.device)}")
    facts += [units.many(len(verdict.runs), "run")] if verdict.runs else []
    facts += [f"build {units.seconds(build.seconds)}"]
    facts += [f"check {units.seconds(verdict.seconds)}"] if verdict.runs else []
    facts += [f"weights: {units.one_line(build.weights)}"] if build.weights else []
    use = record.uses_library_kernels
    if use is not None and use.names:
        facts += [f"{use.share:.0%} of a call in {units.one_line(use.names[0])} and the like"]
    return ", ".join(facts)


def verdict_line(record: Record) -> str:
    """Both verdicts side by side, with the worst figures of all runs."""
    verdict = record.verdict
    if not verdict.runs:
        return ""
    ratio = verdicts.worst_ratio(verdict)
    proof = f"proof {_YES[verdict.proof]}"
    if ratio is not None:
        proof += f" (worst ratio {units.ratio(ratio)}, limit {units.ratio(verdict.limit)})"
    like = f", looks like {units.one_line(verdict.looks_like)}" if verdict.looks_like else ""
    bits = units.bits(verdicts.fewest_bits(verdict))
    return f"{proof}; compat {_YES[verdict.compat]}; effective bits {bits}{like}"


def notes(record: Record) -> list[str]:
    """Remarks on the verdict and on the timing, each once."""
    timing = record.timing.notes if record.timing else ()
    return list(dict.fromkeys(units.one_line(note) for note in (*record.verdict.notes, *timing)))


def main_clock(timing: Timing) -> str:
    """``device`` where the candidate has a device time, else ``host``."""
    return "device" if timing.candidate.device is not None else "host"


def one_clock(timing: Timing) -> bool:
    """Whether device and host are the same clock, as on a CPU: one column then says it all."""
    return all(one.device is None or one.device == one.host for one, _ in contestants(timing))


def main_series(contestant: Contestant, timing: Timing) -> Series | None:
    """The samples of the clock that the answers rest on."""
    return contestant.device if main_clock(timing) == "device" else contestant.host


def ratio_to(timing: Timing, baseline: str, clock: str) -> Ratio | None:
    """The ratio to one baseline by one clock; by either where the two are the same."""
    found = [r for r in timing.ratios if r.baseline == baseline]
    return next((r for r in found if r.clock == clock or one_clock(timing)), None)


def best_other(timing: Timing) -> Ratio | None:
    """The ratio to the fastest baseline other than eager, by the main clock."""
    names = (one.name for one in timing.baselines if one.name != "eager")
    ratios = (ratio_to(timing, name, main_clock(timing)) for name in names)
    return min((r for r in ratios if r is not None), key=lambda r: r.ratio, default=None)


def contestant_rows(timing: Timing) -> list[list[str]]:
    """A head and one row a contestant: name, times, ratio with its answer by the main clock and,
    where it is another one, by the second."""
    clock, single = main_clock(timing), one_clock(timing)
    other = "host" if clock == "device" else "device"
    head = ["", "time", "ratio", "answer"]
    if not single:
        head = ["", "device", "host", f"{clock} ratio", "answer", f"{other} ratio", "answer"]
    rows = [head]
    for one, role in contestants(timing):
        series = (main_series(one, timing),) if single else (one.device, one.host)
        row = [role or units.one_line(one.name), *(units.time_cell(each) for each in series)]
        for each in (clock,) if single else (clock, other):
            row += units.ratio_cells(None if role else ratio_to(timing, one.name, each))
        rows.append(row)
    return rows


def contestants(timing: Timing) -> list[tuple[Contestant, str]]:
    """Everyone timed, with the role of those that are no baseline."""
    floor = timing.floor
    floors = [(floor, f"floor ({units.one_line(floor.name)})")] if floor else []
    return [(timing.candidate, "candidate"), *((one, "") for one in timing.baselines), *floors]


def time_facts(timing: Timing) -> list[str]:
    """Who has no time and why, the first call, and what the candidate reached where known."""
    facts = [
        f"{role or units.one_line(one.name)}: {units.one_line(one.problem)}"
        for one, role in contestants(timing)
        if one.problem
    ]
    if timing.candidate.first_call is not None and timing.candidate.build is None:
        # Records of old have only this of what happened once.
        facts.append(f"first call {units.seconds(timing.candidate.first_call)}")
    floor = main_series(timing.floor, timing) if timing.floor and not timing.limit else None
    taken = main_series(timing.candidate, timing)
    facts += units.achieved(taken, floor, timing.flops, timing.bytes)
    return facts + speed.limit_lines(timing)


def files_of(record: Record) -> tuple[str, str]:
    """Problem and candidate, as one names them to a command."""
    return _problem_word(record), _candidate_path(record)


def next_command(record: Record) -> str:
    """The command that makes sense after this record."""
    files = " ".join(map(units.shell_path, files_of(record))) + _setting(record)
    if record.status == "unsupported":
        return "kernelproof doctor"
    if record.status == "compile_error":
        return f"kernelproof check {files}"
    if record.status != "pass":
        # The worst failure alone, which is the quickest way to see whether a change mends it.
        # Its family and layout come again with the seed.
        cases = [run.case for run, _ in verdicts.failures(record.verdict)][:1]
        if not cases and record.verdict.failing is not None:
            cases = [record.verdict.failing.case]
        case = "".join(f" --case {shlex.quote(units.one_line(name))}" for name in cases if name)
        return f"kernelproof check {files}{case} --seed {record.seed}"
    if record.timing is None and record.verdict.evidence in ("device", "cpu"):
        return f"kernelproof bench {files}"
    return "kernelproof report -o report.html"


def _setting(record: Record) -> str:
    """The options that make of the problem's file the problem that was judged. Sizes that are
    tuples no option takes."""
    sizes = record.problem.sizes
    given = all(isinstance(value, int) for value in sizes.values())
    words = [f" --size {shlex.quote(f'{n}={v}')}" for n, v in sizes.items()] if given else []
    return "".join([*words, " --training" if record.problem.training else ""])


# The sections of `detail`


def _status(record: Record) -> Iterator[str]:
    candidate, problem = units.one_line(record.candidate.name), units.one_line(record.problem.name)
    yield f"{record.status}: {candidate} {units.MEANING[record.status]} ({problem})"
    yield status_facts(record)


def _why(record: Record) -> Iterator[str]:
    if record.status == "pass" and not verdicts.reasons(record):
        return
    yield "why" if record.status != "pass" else "message"
    for reason in verdicts.reasons(record):
        for line in reason.split("\n"):
            yield from units.wrapped(line, "  ")
    failed = verdicts.failure_lines(record)
    for first, *rest in failed[:_SHOWN_FAILURES]:
        yield f"  {first}"
        for line in rest:
            yield from units.wrapped(line, "    ")
    if len(failed) > _SHOWN_FAILURES:
        yield f"  and {units.many(len(failed) - _SHOWN_FAILURES, 'more failure')}"
    for text in verdicts.long_details(record):
        lines = text.split("\n")
        if record.status != "compile_error" and len(lines) > _SHOWN_LINES:
            yield f"    .. {units.many(len(lines) - _SHOWN_LINES, 'earlier line')} in the record"
            lines = lines[-_SHOWN_LINES:]
        yield from (f"    {line}".rstrip() for line in lines)


def _errors(record: Record) -> Iterator[str]:
    if line := verdict_line(record):
        yield line
    if rows := verdicts.error_rows(record.verdict):
        yield "\nerrors against float64, worst run of each output"
        yield from units.table([verdicts.ERROR_COLUMNS, *rows], "<<>>>>><><", indent="  ")


def _checks(record: Record) -> Iterator[str]:
    checks, remarks = record.verdict.checks, notes(record)
    if not checks and not remarks:
        return
    counts = verdicts.check_counts(record.verdict)
    yield f"checks: {counts}" if counts else "checks"
    told = verdicts.told_checks(record.verdict)
    rows = [
        [check.outcome, units.one_line(check.name), units.one_line(check.message)] for check in told
    ]
    yield from units.table(rows, "<<<", indent="  ")
    yield from (f"  note  {remark}" for remark in remarks)


def _times(record: Record) -> Iterator[str]:
    timing = record.timing
    if timing is None:
        return
    place = f"case {units.one_line(timing.case)}, {units.one_line(timing.device)}"
    yield f"time per call, median [95 % interval]: {place}, {units.many(timing.threads, 'thread')}"
    rows = contestant_rows(timing)
    yield from units.table(rows, "<" * len(rows[0]), indent="  ")
    yield "  ratio: time of the baseline over time of the candidate"
    yield from (f"  {line}" for line in time_facts(timing))
    yield from times.lines(timing, contestants(timing))


def _problem_word(record: Record) -> str:
    """What a person would type: the name of a problem of the package, else the path."""
    problem = record.problem
    return problem.name if problem.path.startswith("kernelproof/") else problem.path


def _candidate_path(record: Record) -> str:
    """What a person would type: the word for a shipped kernel, the folder where the candidate is
    one, else the file."""
    candidate = record.candidate
    if candidate.path.startswith("kernelproof/"):
        return candidate.name
    return candidate.folder if Path(candidate.folder).name == candidate.name else candidate.path
