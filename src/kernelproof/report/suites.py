"""Runs of suites as plain text: the numbers, the results, a list, two runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernelproof.report import units
from kernelproof.types import (
    DeviceNumbers,
    RunsCompared,
    SuiteResult,
    SuiteRun,
    SuiteState,
    Tally,
)

FAST_HEAD = ("beside", "p", "fast_p (compat, means)", "fast_p (proof, interval)", "open")
WINS_HEAD = (
    "beside", "faster", "same", "slower", "unclear", "mean of correct", "of those above 1",
    "of all, 1 if not",
)  # fmt: skip
CATEGORY_HEAD = ("category", "items", "pass", "compat", "fast_1 (proof)", "mean of correct")
DEFINITIONS = (
    "fast_p (compat, means): as KernelBench defines it: items that pass the compat verdict and "
    "whose baseline's mean time over their own is more than p, divided by all items. What passes "
    "compat and not the proof is not timed, and counts as not fast.",
    "fast_p (proof, interval): items that pass the proof and whose whole 95 % interval of the "
    "ratio of medians lies above p, divided by all items; open: those whose interval holds p.",
    "means are geometric, exp(mean(log(ratio))), of ratios of medians: of the items that pass and "
    "were timed; of those of them above 1; of all items, where one that does not pass counts as 1, "
    "as if its baseline were kept.",
)


_SOME = 12  # of many names
_REASON = 100  # characters of a reason beside the progress


def shown(state: SuiteState, items: bool = True) -> str:
    """A run: statuses, numbers by device, their definitions, and with ``items`` each result."""
    run = state.run
    lines = units.wrapped(title(run), hanging=2)
    if state.left:
        lines.append(f"{state.left} of {run.count} left: kernelproof suite run --resume {run.id}")
    for numbers in state.devices:
        lines += ["", *_device(numbers)]
    if any(numbers.total.fast for numbers in state.devices):
        lines += ["", *(line for text in DEFINITIONS for line in units.wrapped(text, hanging=2))]
    if items and state.results:
        lines += _items(state.results)
    return "\n".join(lines)


def _items(results: Sequence[SuiteResult]) -> list[str]:
    """A table of all, but for problems without a candidate, which can be most."""
    missing = [r.item for r in results if r.status == "missing"]
    told = [r for r in results if r.status != "missing"]
    lines: list[str] = []
    if told:
        rows = [["item", "status", "time", "beside eager", ""], *map(_row, told)]
        align, widths = "<<<<<", {4: 20, 0: 24}
        if any(result.harness for result in told):
            for row, word in zip(rows, ["its harness", *map(harness, told)], strict=True):
                row.insert(2, word)
            align, widths = "<<<<<<", {5: 20, 0: 24}
        lines += ["", *units.table(rows, align, units.WIDTH, widths)]
    if missing:
        some = ", ".join(missing[:_SOME]) + (", ..." if len(missing) > _SOME else "")
        text = f"{units.many(len(missing), 'problem')} without a candidate: {some}"
        lines += ["", *units.wrapped(units.one_line(text), hanging=2)]
    return lines


def title(run: SuiteRun) -> str:
    """A run in one line."""
    how = "timed" if run.timed else "not timed"
    return (
        f"run {run.id} of {units.one_line(run.suite)} ({run.format}, "
        f"{units.many(run.count, 'item')}, {how}), {run.created:%Y-%m-%d %H:%M}"
    )


def line(result: SuiteResult) -> str:
    """What came of an item, in one line."""
    parts = [f"{result.item}: {result.status}"]
    if result.time is not None:
        parts.append(units.seconds(result.time[0]))
    eager = beside(result, "eager")
    parts += [f"eager/this {eager}"] if eager else []
    parts += [f"after {result.attempts - 1} lost"] if result.attempts > 1 else []
    parts += [f"on {result.place}"] if result.place else []
    told = ", ".join(parts)
    why = units.one_line(result.message) if result.status != "pass" else ""
    return f"{told}: {why[:_REASON]}{'...' if len(why) > _REASON else ''}" if why else told


def harness(result: SuiteResult) -> str:
    """What the suite's own harness would say, in its word; "" where there is none."""
    return units.one_line(result.harness.word) if result.harness is not None else ""


def beside(result: SuiteResult, baseline: str) -> str:
    """The ratio to a baseline with its answer; "" where there is none."""
    found = next((r for r in result.ratios if r.baseline == baseline), None)
    return " ".join(units.ratio_cells(found)).strip()


def listed(runs: Sequence[tuple[SuiteRun, int]]) -> str:
    """One line a run."""
    if not runs:
        return "no runs yet: `kernelproof suite run SUITE CANDIDATES` makes one"
    rows = [["run", "suite", "format", "judged", "timed", "started"]]
    rows += [
        [r.id, units.one_line(r.suite), r.format, f"{n} of {r.count}", "yes" if r.timed else "no",
         f"{r.created:%Y-%m-%d %H:%M}"]
        for r, n in runs
    ]  # fmt: skip
    return "\n".join(units.table(rows, "<<<><<", units.WIDTH, {1: 16}))


def compared(found: RunsCompared) -> str:
    """What differs between two runs."""
    lines = [f"a: {title(found.a)}", f"b: {title(found.b)}"]
    lines += [w for note in found.notes for w in units.wrapped(f"note: {note}", hanging=2)]
    if found.changes:
        rows = [["item", "what", "a", "b"]]
        rows += [[c.item, c.what, c.a, c.b] for c in found.changes]
        lines += ["", *units.table(rows, "<<<<", units.WIDTH, {0: 24, 2: 20, 3: 20})]
    else:
        lines += ["", "nothing differs"]
    lines.append(
        f"{units.many(found.same, 'item')} alike, {found.not_timed} of them by status only"
    )
    return "\n".join(lines)


def statuses(tally: Tally) -> str:
    """Such as "250 items: 120 pass, 30 wrong"."""
    told = ", ".join(f"{n} {status}" for status, n in tally.statuses.items())
    return f"{units.many(tally.count, 'item')}: {told}; {tally.compat} pass compat"


def fast_rows(tally: Tally) -> list[tuple[str, ...]]:
    """Under ``FAST_HEAD``."""
    return [
        (f.baseline, f"{f.p:g}", _rate(f.theirs), _rate(f.ours), str(f.open)) for f in tally.fast
    ]


def wins_rows(tally: Tally) -> list[tuple[str, ...]]:
    """Under ``WINS_HEAD``."""
    return [
        (w.baseline, str(w.faster), str(w.same), str(w.slower), str(w.unclear),
         units.ratio(w.correct), units.ratio(w.correct_and_faster), units.ratio(w.kept))
        for w in tally.wins
    ]  # fmt: skip


def category_rows(numbers: DeviceNumbers) -> list[tuple[str, ...]]:
    """Under ``CATEGORY_HEAD``; fast_1 and mean beside eager, or the first baseline."""
    rows: list[tuple[str, ...]] = []
    for tally in numbers.categories:
        names = [w.baseline for w in tally.wins]
        name = "eager" if "eager" in names else next(iter(names), "")
        one = next((f for f in tally.fast if f.baseline == name and f.p == 1.0), None)
        wins = next((w for w in tally.wins if w.baseline == name), None)
        rows.append(
            (tally.category or "-", str(tally.count), str(tally.statuses.get("pass", 0)),
             str(tally.compat), _rate(one.ours) if one is not None else units.MISSING,
             units.ratio(wins.correct) if wins is not None else units.MISSING)
        )  # fmt: skip
    return rows


def _rate(value: float) -> str:
    return f"{value:.3f}"


def _device(numbers: DeviceNumbers) -> Iterator[str]:
    yield from units.wrapped(f"{numbers.device or 'on no device'}: {statuses(numbers.total)}")
    for head, align, rows in (
        (FAST_HEAD, "<>>>>", fast_rows(numbers.total)),
        (WINS_HEAD, "<>>>>>>>", wins_rows(numbers.total)),
        (CATEGORY_HEAD, "<>>>>>", category_rows(numbers)),
    ):
        if rows:
            yield from ["", *units.table([head, *rows], align, units.WIDTH, {0: 16})]


def message(result: SuiteResult) -> str:
    """Why it does not pass, and why the harness would say something else than the proof."""
    told = "" if result.status == "pass" else result.message
    if result.harness is None or result.harness.accepted is result.proof:
        return told
    reasons = "; ".join(result.harness.reasons)
    if not reasons:
        return told
    return f"{told} (its harness: {reasons})" if told else f"its harness: {reasons}"


def _row(result: SuiteResult) -> list[str]:
    time = units.seconds(result.time[0]) if result.time is not None else ""
    told = units.one_line(message(result))
    return [result.item, result.status, time, beside(result, "eager"), told]
