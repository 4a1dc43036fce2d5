"""An attempt series: a problem, a budget of calls, and in the end one submission.

State is in the record store's database and nowhere else, since there several processes, machines
and readers (a page, a colleague) see it at once, and a call of the budget or the one submission is
taken by a single UPDATE, which no crash leaves half done. A call whose process dies is found by the
next command (see `holder`), counts as lost, and stays paid; the session goes on. A candidate that
is given as text is written into the data folder; see `given`.

These functions are the Python interface; the command line and the MCP server show what they return.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import attempts, given, holder, session_folder, sources
from kernelproof import candidate as candidates
from kernelproof import problem as problems
from kernelproof.bounds import MOST_SECONDS
from kernelproof.errors import UsageError, no_case
from kernelproof.store import Sessions, Store
from kernelproof.store.sessions import SUBMIT, aware, now
from kernelproof.types import (
    CallAnswer,
    NextStep,
    Progress,
    Rules,
    SessionLog,
    SessionState,
    Sources,
    Started,
    What,
    silent,
)

if TYPE_CHECKING:
    from kernelproof.session_calls import Outcome

Candidate = str | Path
_MOST_CALLS = 1_000_000_000
_KINDS = ("compile", "check", "bench", "inspect")


@dataclasses.dataclass(frozen=True)
class _Session:
    """A session as it is in the store."""

    state: SessionState
    rules: Rules
    path: str


def start(
    problem: str | Path, rules: Rules | None = None, *, store: str | None = None,
    folder: Path | None = None,
) -> Started:  # fmt: skip
    """Open a session on ``problem``. ``folder``: keep it there, with a store of its own; the folder
    then names it.

    Raises:
        UsageError: no such problem or case, rules that cannot be kept, a folder that has a session.
    """
    rules = rules or Rules()
    unknown = sorted(set(rules.costs) - set(_KINDS))
    if unknown:
        raise UsageError(f"no call {unknown[0]!r} to give a cost; there are {', '.join(_KINDS)}")
    for name, count in {"budget": rules.budget, **rules.costs}.items():
        if not 0 <= count <= _MOST_CALLS:
            raise UsageError(f"{name} {count}: budgets and costs go from 0 to {_MOST_CALLS:,}")
    if rules.seconds is not None and not 0 <= rules.seconds <= MOST_SECONDS:
        raise UsageError(f"a time of {rules.seconds} s: it goes from 0 to {MOST_SECONDS:,.0f}")
    path = problems.find(problem).resolve()
    if rules.cases or rules.sizes or rules.shrink_to is not None:
        found = problems.load(path, dict(rules.sizes), rules.shrink_to).problem
        names = [case.name for case in found.cases]
        if wrong := [name for name in rules.cases if name not in names]:
            raise UsageError(f"{found.name} {no_case(wrong[0], names)}")
    # Without rules about its inside it is not run: that would import torch first.
    name = problems.name_of(path)
    known = problems.known_problems().get(name)
    shipped = known is not None and known.resolve() == path
    # A shipped problem by its name, which means the same on every machine.
    where = name if shipped else str(path)
    if folder is not None:
        if store is not None:
            raise UsageError(f"the session in {folder} has its store there; leave {store} out")
        store = session_folder.store_in(folder)
    identity = uuid.uuid4().hex[:12]
    ends = None if rules.seconds is None else now() + datetime.timedelta(seconds=rules.seconds)
    kept = Sessions(store)
    body = {"rules": rules.model_dump(mode="json"), "path": where}
    kept.create(identity, name, rules.budget, ends, json.dumps(body))
    if folder is not None:
        session_folder.note(folder, identity)
    made = _load(kept, identity)
    step = NextStep(action="check", why=f"{rules.budget} calls: begin with what you have")
    if not rules.budget:
        step = NextStep(action="submit", why="no calls: all that is taken is a submission")
    return Started(session=made.state, rules=rules, next=step)


def compile(session: str, candidate: Candidate, **how: Any) -> CallAnswer:
    """Build a candidate only: quick, with the compiler's errors at their lines, and what its
    kernels take. Arguments and errors as `call`."""
    return call(session, "compile", candidate, **how)


def check(session: str, candidate: Candidate, **how: Any) -> CallAnswer:
    """Build and check a candidate. Arguments and errors as `call`."""
    return call(session, "check", candidate, **how)


def bench(session: str, candidate: Candidate, **how: Any) -> CallAnswer:
    """Check a candidate, then time it beside baselines. Arguments and errors as `call`."""
    return call(session, "bench", candidate, **how)


def inspect(session: str, candidate: Candidate, **how: Any) -> CallAnswer:
    """What holds a candidate's kernels back. Arguments and errors as `call`."""
    return call(session, "inspect", candidate, **how)


def submit(session: str, candidate: Candidate, **how: Any) -> CallAnswer:
    """Judge a candidate as it will be judged for good, with fresh secret seeds, and close the
    session. Costs no call. Arguments and errors as `call`."""
    return call(session, "submit", candidate, **how)


def call(
    session: str,
    what: What,
    candidate: Candidate,
    *,
    files: Mapping[str, str] | None = None,
    name: str = "candidate",
    store: str | None = None,
    progress: Progress = silent,
) -> CallAnswer:
    """Carry out one call of a session, whatever the candidate does.

    Args:
        session: its id, how it begins, or its folder.
        candidate: a path, a word for a shipped kernel, or the text of a Python module with
            ModelNew (more than one line).
        files, name: of a candidate that is text: the sources beside it, and what it is called.

    Raises:
        UsageError: no such session or candidate; the session is closed, or has no call or time
            left. These cost nothing.
    """
    session, store = session_folder.resolved(session, store)
    kept = Sessions(store)
    recovered(kept, session)
    # Not before: to open a session takes none of it.
    from kernelproof import advice, session_calls

    found = _load(kept, session)
    path = given.placed(found.state.id, candidate, files, name, _problem_path(found))
    loaded = candidates.load(path)
    held = sources.of_candidate(loaded)
    _allowed(kept, found, what, held)
    cost = 0 if what == SUBMIT else found.rules.costs.get(what, 1)
    number = kept.begin(
        found.state.id, what, cost, holder.mine(), loaded.name, loaded.digest,
        held.model_dump_json(),
    )  # fmt: skip
    if number is None:
        raise UsageError(refusal(_load(kept, found.state.id), what))
    started = time.perf_counter()
    with _paid(kept, found.state.id, number):
        outcome = session_calls.make(what, path, found.path, found.rules, store, progress)
        if candidates.load(path).digest != loaded.digest:
            raise UsageError(f"{path} changed while it was looked at; this call is given back")
    rows = kept.calls(found.state.id)
    answer = CallAnswer(
        session=found.state, number=number, what=what, candidate=loaded.name, digest=loaded.digest,
        changed=attempts.changed(kept, rows, number), seconds=time.perf_counter() - started,
        next=NextStep(action="log", why=""), **_fields(outcome),
    )  # fmt: skip
    if outcome.record is not None:
        Store(store).add(outcome.record)
    # The record has its own place.
    without = answer.model_copy(update={"record": None})
    kept.finish(found.state.id, number, without.model_dump_json())
    after = _log(kept, _load(kept, found.state.id))
    return answer.model_copy(
        update={"session": after.session, "next": advice.after_call(answer, after)}
    )


def log(session: str, *, store: str | None = None) -> SessionLog:
    """The ladder of a session: every attempt, with what changed and what came of it.

    Raises:
        UsageError: no such session.
    """
    session, store = session_folder.resolved(session, store)
    kept = Sessions(store)
    recovered(kept, session)
    return _log(kept, _load(kept, session))


def sessions(count: int = 20, *, store: str | None = None) -> tuple[SessionState, ...]:
    """The newest sessions, newest first."""
    kept = Sessions(store)
    return tuple(_load(kept, row.id).state for row in kept.latest(count))


def source_of(session: str, number: int, *, store: str | None = None) -> Sources:
    """The candidate of attempt ``number``, as it was then. Raises UsageError if there is none."""
    session, store = session_folder.resolved(session, store)
    kept = Sessions(store)
    found = kept.get(session)
    for row in kept.calls(found.id):
        if row.number == number:
            return Sources.model_validate_json(kept.sources(row.sources))
    raise UsageError(f"session {found.id} has no attempt {number}; it has {found.calls}")


def problem_of(session: str, *, store: str | None = None) -> str:
    """The name or path of a session's problem. Raises UsageError if there is no such session."""
    session, store = session_folder.resolved(session, store)
    return _load(Sessions(store), session).path


def recovered(kept: Sessions, session: str) -> None:
    """Mark the calls whose process has died as lost."""
    identity = kept.get(session).id
    for row in kept.calls(identity):
        if row.state == "running" and holder.gone(row.holder):
            kept.lose(identity, row.number)


def refusal(found: _Session, what: str) -> str:
    """Why a session takes no call, and what to do."""
    state, rules = found.state, found.rules
    head = f"session {state.id} "
    if state.state == "closed":
        text = "is closed: its candidate was submitted; `kernelproof session log` shows the ladder"
        return head + text + ", `kernelproof session start` opens another"
    if state.state == "submitting":
        return head + "is being closed: a submission is running; see `kernelproof session log`"
    if state.seconds_left == 0:
        return (
            f"{head}has no time left of its {rules.seconds:g} s; what was tried before can still "
            "be submitted (once)"
        )
    cost = rules.costs.get(what, 1)
    return (
        f"{head}has {state.left} of its {state.budget} calls left, and {what} costs {cost}; "
        "submit the best attempt (that costs none), `kernelproof session log` shows which"
    )


def _allowed(kept: Sessions, found: _Session, what: str, held: Sources) -> None:
    """After the time is over only what was tried before may be submitted."""
    if what != SUBMIT or found.state.seconds_left != 0 or found.state.state != "open":
        return
    if held.digest not in {row.digest for row in kept.calls(found.state.id)}:
        raise UsageError(
            f"session {found.state.id} has no time left, and this candidate was not tried in it "
            f"(digest {held.digest[:12]}): submit one of the attempts that "
            "`kernelproof session log` shows"
        )


@contextlib.contextmanager
def _paid(kept: Sessions, session: str, number: int) -> Iterator[None]:
    """What ends without an answer by no fault of the candidate costs nothing; an interrupt does."""
    try:
        yield
    except Exception as error:
        kept.refund(session, number, f"{type(error).__name__}: {error}")
        raise
    except BaseException:
        kept.lose(session, number)
        raise


def _load(kept: Sessions, session: str) -> _Session:
    row = kept.get(session)
    body = json.loads(row.body)
    left = None
    if row.ends is not None:
        left = max(0.0, (aware(row.ends) - now()).total_seconds())
    running = sum(call.state == "running" for call in kept.calls(row.id))
    state = SessionState(
        id=row.id, problem=row.problem, path=str(body["path"]), created=aware(row.created),
        state=row.state, budget=row.budget, used=row.used, left=row.budget - row.used,
        seconds_left=left, calls=row.calls, running=running,
    )  # fmt: skip
    return _Session(state, Rules.model_validate(body["rules"]), str(body["path"]))


def _log(kept: Sessions, found: _Session) -> SessionLog:
    from kernelproof import advice

    ladder, best = attempts.ladder(kept, kept.calls(found.state.id))
    empty = SessionLog(
        session=found.state, rules=found.rules, attempts=ladder, best=best,
        next=NextStep(action="log", why=""),
    )  # fmt: skip
    return empty.model_copy(update={"next": advice.for_session(empty)})


def _problem_path(found: _Session) -> str:
    return str(problems.find(found.path))


def _fields(outcome: Outcome) -> dict[str, Any]:
    return {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
