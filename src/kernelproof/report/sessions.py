"""Sessions as plain text: the answer of a call, the ladder, a list. What the next action is called
differs between the command line and the tools of an agent: both give their own words for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kernelproof.report import units
from kernelproof.report.text import detail as record_detail
from kernelproof.types import (
    Attempt,
    CallAnswer,
    Diagnostic,
    NextStep,
    SessionLog,
    SessionState,
    Started,
)

Words = Callable[[NextStep, SessionState], str]
_HEAD = ["#", "call", "status", "changed", "bits", "regs", "spilled", "time", "vs eager", ""]
_ALIGN = "><<<>>><<<"
_EMPTY = {units.MISSING, ""}
_CHANGED = 3  # the column that may be cut
_DETAIL_LINES = 20
_DIFF_LINES = 24


def started(made: Started, words: Words) -> str:
    """A new session."""
    rules = made.rules
    facts = [f"{units.many(rules.budget, 'call')}"]
    facts += [f"{n} costs {c}" for n, c in rules.costs.items() if c != 1]
    facts += [f"{rules.seconds:g} s"] if rules.seconds is not None else ["no time limit"]
    lines = [f"session {made.session.id} on {made.session.problem}: {', '.join(facts)}"]
    return "\n".join([*lines, *_next(made.next, made.session, words)])


def answer(one: CallAnswer, words: Words, full: bool = True) -> str:
    """The answer of a call: status first, why, figures, then calls left and the next action.

    Args:
        full: with all about a judgement, instead of its figures in one line.
    """
    lines = [f"{one.what} {one.number}: {one.status}: {units.one_line(one.candidate)}"]
    if one.changed:
        lines[0] += f" ({one.changed})"
    if one.diagnostics:
        for found in one.diagnostics:
            lines += diagnostic(found)
    elif one.record is None or not full:
        lines += [w for t in one.message.split("\n") if t for w in units.wrapped(t, "  ")]
        shown = units.plain(one.detail).splitlines() if one.status != "pass" else []
        lines += [f"    {line}" for line in shown[-_DETAIL_LINES:]]
    if one.record is not None and full:
        lines += ["", _without_end(record_detail(one.record)), ""]
    else:
        lines += figures(one)
        from kernelproof.report.inspection import lines as inspected

        lines += inspected(one.inspection)
        lines += [w for n in one.notes for w in units.wrapped(f"note: {units.one_line(n)}", "  ")]
    return "\n".join([*lines, *_next(one.next, one.session, words)])


def figures(one: CallAnswer) -> list[str]:
    """The summary of an answer in one line; none where there is nothing to say."""
    s = one.summary
    parts = [f"evidence {s.evidence}"] if s.evidence != "none" else []
    parts += [f"effective bits {units.bits(s.bits)}"] if s.bits is not None else []
    if s.worst is not None and s.limit is not None:
        parts.append(f"error over budget {units.proof(s.worst, s.limit)}")
    parts += [f"compat {'yes' if s.compat else 'no'}"] if s.compat is not None else []
    parts += [f"{units.many(s.registers, 'register')}"] if s.registers is not None else []
    parts += [f"{s.spilled} B spilled"] if s.spilled is not None else []
    parts += [f"{units.size(s.shared)} shared"] if s.shared else []
    parts += [f"time {units.seconds_interval(*s.time)}"] if s.time is not None else []
    if s.eager is not None:
        parts.append(f"eager/this {' '.join(units.ratio_cells(s.eager))}")
    return units.wrapped(", ".join(parts), "  ", hanging=2) if parts else []


def diagnostic(found: Diagnostic) -> list[str]:
    """One error of a compiler with the lines around it."""
    where = f"{found.file}:{found.line}" + (f":{found.column}" if found.column else "")
    context = [f"      {units.plain(line)}" for line in found.context]
    return [*units.wrapped(f"{where}: {units.one_line(found.message)}", "  ", hanging=4), *context]


def ladder(log: SessionLog, words: Words, diffs: bool = False) -> str:
    """The attempts as a table, marks of the best, and with ``diffs`` what each changed."""
    lines = [] if log.attempts else ["nothing has been tried yet"]
    if log.attempts:
        rows = [_HEAD, *(_row(a) for a in log.attempts)]
        # What nothing is known of needs no column.
        told = [n for n, cells in enumerate(zip(*rows[1:], strict=True)) if set(cells) - _EMPTY]
        align = "".join(_ALIGN[n] for n in told)
        elastic = {told.index(_CHANGED): 14} if _CHANGED in told else {}
        shown = [[row[n] for n in told] for row in rows]
        lines += units.table(shown, align, units.WIDTH, elastic)
    for one in log.attempts:
        lines += list(_told(one, diffs))
    return "\n".join([*lines, "", *_next(log.next, log.session, words)])


def listed(states: Sequence[SessionState]) -> str:
    """One line a session."""
    if not states:
        return "no sessions yet: `kernelproof session start PROBLEM` opens one"
    rows = [["session", "problem", "state", "used", "left", "started"]]
    rows += [
        [s.id, s.problem, s.state, str(s.used), str(s.left), f"{s.created:%Y-%m-%d %H:%M}"]
        for s in states
    ]
    return "\n".join(units.table(rows, "<<<>><"))


def state_line(state: SessionState) -> str:
    """Where a session stands, in one line."""
    parts = [f"session {state.id} on {state.problem}: {state.state}"]
    parts.append(f"{state.left} of {units.many(state.budget, 'call')} left")
    if state.seconds_left is not None:
        parts.append(f"{state.seconds_left:.0f} s left")
    parts += [f"{state.running} running"] if state.running else []
    return ", ".join(parts)


def _row(a: Attempt) -> list[str]:
    s = a.summary
    status = a.status or a.state
    mark = "best" if a.best else "tied" if a.tied else ""
    eager = " ".join(units.ratio_cells(s.eager)).strip() if s.eager is not None else ""
    row = [
        str(a.number), a.what, status, a.changed,
        units.bits(s.bits) if s.bits is not None else "",
        str(s.registers) if s.registers is not None else "",
        str(s.spilled) if s.spilled is not None else "",
        units.seconds_interval(*s.time) if s.time is not None else "", eager, mark,
    ]  # fmt: skip
    return [cell or units.MISSING for cell in row[:-1]] + [mark]


def _told(a: Attempt, diffs: bool) -> Iterator[str]:
    if a.status != "pass" and a.message:
        text = f"{a.number}: {a.status or a.state}: {units.one_line(a.message)}"
        yield from units.wrapped(text, "  ", hanging=4)
    if diffs and a.diff:
        found = a.diff.splitlines()
        yield from (f"    {units.plain(line)}" for line in found[:_DIFF_LINES])
        if len(found) > _DIFF_LINES:
            yield f"    .. {units.many(len(found) - _DIFF_LINES, 'more line')}"


def _next(step: NextStep, state: SessionState, words: Words) -> list[str]:
    text = f"next     {units.one_line(step.why)}" if step.why else "next"
    lines = [state_line(state), *units.wrapped(text, hanging=9)]
    command = words(step, state)
    return [*lines, f"         {command}"] if command else lines


def _without_end(text: str) -> str:
    """A session has its own word on what comes next, and one machine throughout."""
    return text.rsplit("\n\nmachine ", 1)[0]
