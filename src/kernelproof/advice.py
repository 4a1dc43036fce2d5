"""The next sensible action in a session, and why."""

from __future__ import annotations

from kernelproof.report import units
from kernelproof.types import Attempt, CallAnswer, NextStep, SessionLog, What

_TIMED = ("cpu", "device")
_LONG = 200


def after_call(answer: CallAnswer, log: SessionLog) -> NextStep:
    """After a call, whose session then stands as in ``log``."""
    ended = _ended(log)
    if ended is not None:
        return ended
    if answer.what == "inspect" and answer.status == "unsupported":
        # It has no kernel to look at, which is no fault.
        return NextStep(action="bench", why=_short(answer.message), candidate=answer.candidate)
    if answer.status != "pass":
        return _mend(answer)
    return _onwards(answer, log)


def for_session(log: SessionLog) -> NextStep:
    """For somebody who looks at a session."""
    ended = _ended(log)
    if ended is not None:
        return ended
    if log.session.running:
        text = f"{units.many(log.session.running, 'call')} still running"
        return NextStep(action="log", why=text)
    done = [a for a in log.attempts if a.state == "done" and not _nothing_to_inspect(a)]
    if not done:
        return NextStep(action="check", why="nothing has been tried yet")
    last = done[-1]
    if last.status != "pass":
        why = f"attempt {last.number} is {last.status}: {_short(last.message)}"
        return NextStep(action="edit", why=why, candidate=last.candidate)
    best = _best(log)
    if best is not None and best.summary.time is not None and best.number != last.number:
        why = f"attempt {best.number} is the best so far; go on, or submit it"
        return NextStep(action="submit", why=why, candidate=best.candidate)
    if last.what == "compile":
        return NextStep(action="check", why="it compiles", candidate=last.candidate)
    if last.summary.time is not None:
        why = f"attempt {last.number} is the best so far: submit it, or go on"
        return NextStep(action="submit", why=why, candidate=last.candidate)
    return NextStep(action="bench", why="it passes", candidate=last.candidate)


def _ended(log: SessionLog) -> NextStep | None:
    """Where no call is possible any more."""
    state = log.session
    if state.state == "closed":
        return NextStep(action="start", why="this session is closed")
    cheapest = min((log.rules.costs.get(w, 1) for w in ("compile", "check", "bench")), default=1)
    over = state.seconds_left == 0
    if state.left >= cheapest and not over:
        return None
    gone = "the time is over" if over else f"{state.left} calls left"
    best = _best(log)
    if best is None:
        return NextStep(action="start", why=f"{gone}, and no attempt has passed")
    why = f"{gone}: submit attempt {best.number}, the best that passed; it costs no call"
    return NextStep(action="submit", why=why, candidate=best.candidate)


def _mend(answer: CallAnswer) -> NextStep:
    if answer.status == "unsupported":
        why = f"this machine cannot run it: {_short(answer.message)}"
    elif answer.diagnostics:
        first = answer.diagnostics[0]
        why = f"mend {first.file}:{first.line}: {_short(first.message)}"
        if len(answer.diagnostics) > 1:
            why += f" (the first of {len(answer.diagnostics)}; later ones may follow from it)"
    else:
        why = f"{answer.status}: {_short(answer.message)}"
    then: What = "compile" if answer.status == "compile_error" else "check"
    return NextStep(action="edit", why=why, candidate=answer.candidate, then=then)


def _onwards(answer: CallAnswer, log: SessionLog) -> NextStep:
    """After something that passed."""
    name = answer.candidate
    if answer.what == "compile":
        return NextStep(action="check", why="it compiles; now whether it is right", candidate=name)
    hints = [k.sentences[0] for k in answer.kernels if k.sentences]
    if answer.inspection is not None:
        hints = [*answer.inspection.sentences, *hints]
    if answer.what == "inspect":
        if hints:
            return NextStep(action="edit", why=_short(hints[0]), candidate=name)
        return NextStep(action="check", why="nothing stands out", candidate=name)
    if answer.what == "check":
        if answer.summary.evidence in _TIMED:
            why = "it is right; now how fast it is"
            return NextStep(action="bench", why=why, candidate=name)
        why = "it is right, and its times need a GPU: see what its kernels take"
        return NextStep(action="inspect", why=why, candidate=name)
    best = _best(log)
    if best is not None and best.number != answer.number and best.summary.time is not None:
        time = units.seconds(best.summary.time[0])
        why = f"attempt {best.number} is quicker ({time}): go on from that one, or submit it"
        return NextStep(action="edit", why=why, candidate=name, then="bench")
    if hints:
        why = f"the best so far; {_short(hints[0])}"
        return NextStep(action="edit", why=why, candidate=name, then="bench")
    eager = answer.summary.eager
    if eager is not None and eager.answer == "SLOWER":
        why = f"the best so far, and {units.ratio(1 / eager.ratio)} the time of eager: make it do "
        why += "less or move less"
        return NextStep(action="edit", why=why, candidate=name, then="bench")
    return NextStep(action="submit", why="the best so far: submit it, or go on", candidate=name)


def _nothing_to_inspect(one: Attempt) -> bool:
    return one.what == "inspect" and one.status == "unsupported"


def _best(log: SessionLog) -> Attempt | None:
    return next((a for a in log.attempts if a.number == log.best), None)


def _short(text: str) -> str:
    line = units.one_line(text)
    return line if len(line) <= _LONG else f"{line[: _LONG - 2]}.."
