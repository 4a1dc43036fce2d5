"""What a verdict and the times of one record are beside those of another of the same candidate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kernelproof.report import units
from kernelproof.report.text import main_clock, main_series
from kernelproof.report.verdicts import output_ratio, worst_ratio
from kernelproof.types import (
    Check,
    Clock,
    Environment,
    OutputVerdict,
    Record,
    Rerun,
    Run,
    TimeChange,
    Verdict,
)

_DECIDED = ("pass", "fail")


def rerun(then: Record, now: Record, seeds: Literal["same", "fresh"]) -> Rerun:
    """``now`` as a repetition of ``then``. Of another kind of evidence only the status counts:
    an emulator has other checks than a GPU."""
    a, b = then.verdict, now.verdict
    differences = list(_decisions(a, b))
    notes: list[str] = []
    if a.evidence == b.evidence:
        if seeds == "same":
            differences += _of_same_inputs(then, now)
        differences += _checks(a, b)
        notes += _errors(a, b, seeds)
        if seeds == "same" and a.status == b.status != "pass" and _place(a) != _place(b):
            notes.append(f"it failed at {_place(a)} in the proof, at {_place(b)} here")
    return Rerun(
        seeds=seeds, evidence=b.evidence, status=b.status, differences=tuple(differences),
        notes=tuple(notes), record=now,
    )  # fmt: skip


def times(then: Record, now: Record) -> tuple[TimeChange, ...]:
    """Candidate and baselines in both, by the clock that the answers rest on."""
    a, b = then.timing, now.timing
    if a is None or b is None or a.case != b.case:
        return ()
    clock: Clock = "device" if main_clock(a) == "device" else "host"
    others = {one.name: one for one in b.baselines}
    pairs = [(a.candidate, b.candidate)]
    pairs += [(one, others[one.name]) for one in a.baselines if one.name in others]
    found = []
    for old, new in pairs:
        before, after = main_series(old, a), main_series(new, b)
        if before is not None and after is not None:
            overlap = before.low <= after.high and after.low <= before.high
            found.append(
                TimeChange(
                    name=old.name, clock=clock, overlap=overlap,
                    then=(before.median, before.low, before.high),
                    now=(after.median, after.low, after.high),
                )
            )  # fmt: skip
    return tuple(found)


def no_times(then: Record, here: Environment | None) -> str:
    """Why times of ``then`` cannot be compared with times taken here; "" where they can."""
    timing, made = then.timing, then.environment
    if timing is None:
        return "the proof has no times" + (
            "" if then.status == "pass" else ", since its candidate did not pass"
        )
    if here is None:
        return "there is no such device here"
    if timing.device == "cpu":
        facts = ((made.cpu, here.cpu), (made.cores, here.cores), (made.threads, here.threads))
        if all(a == b for a, b in facts):
            return ""
        words = [
            f"{cpu}, {cores} cores, {threads} threads"
            for cpu, cores, threads in zip(*facts, strict=True)
        ]
        return f"they were taken on {words[0]}, and this is {words[1]}"
    if made.gpu == here.gpu:
        return ""
    return f"they were taken on {made.gpu}, and this is {here.gpu or 'a machine without a GPU'}"


def _decisions(a: Verdict, b: Verdict) -> Iterator[str]:
    if a.status != b.status:
        why = f" ({units.one_line(b.message)})" if b.message else ""
        yield f"{a.status} in the proof, {b.status} here{why}"
    elif a.proof != b.proof:
        yield f"proof verdict {a.proof} in the proof, {b.proof} here"


def _of_same_inputs(then: Record, now: Record) -> Iterator[str]:
    a, b = then.verdict, now.verdict
    if a.compat != b.compat and a.status == b.status:
        yield f"compat {_yes(a.compat)} in the proof, {_yes(b.compat)} here"
    if then.seeds != now.seeds:
        yield "the seeds of this kernelproof are others, though they come from the same number"
    before, after = _runs(a), _runs(b)
    for key, run in before.items():
        other = after.get(key)
        if other is not None and other.status != run.status:
            name = f"{run.name}, seed {run.seed}"
            yield f"{name}: {run.status} in the proof, {other.status} here"


def _checks(a: Verdict, b: Verdict) -> Iterator[str]:
    """Checks that failed in one and not in the other. A check that one of the two did not get to
    make, or that took no side, is no difference."""
    old, new = _by_name(a), _by_name(b)
    for name in old.keys() & new.keys():
        one, other = old[name], new[name]
        decided = one.outcome in _DECIDED and other.outcome in _DECIDED
        if decided and one.outcome != other.outcome:
            text = other.message or one.message
            yield f"check {name!r}: {one.outcome} in the proof, {other.outcome} here: {text}"


def _errors(a: Verdict, b: Verdict, seeds: str) -> Iterator[str]:
    """How far the errors are from each other; both are within the budget where both passed."""
    old, new = worst_ratio(a), worst_ratio(b)
    if old is None or new is None:
        return
    limit = f"limit {units.ratio(a.limit)}"
    text = f"worst error over budget {units.ratio(old)} in the proof, {units.ratio(new)} here"
    if seeds != "same":
        yield f"{text}; {limit}"
        return
    common = list(_common(a, b))
    equal = sum(x.figures == y.figures for x, y in common)
    yield f"{text}; {limit}; {equal} of {len(common)} outputs have the same error to the last bit"
    worst = max(common, key=lambda pair: _apart(*pair), default=None)
    if worst is not None and _apart(*worst) > 1.5:
        x, y = (output_ratio(one) or 0.0 for one in worst)
        yield f"largest change: {worst[0].name}, {units.ratio(x)} then, {units.ratio(y)} here"


def _apart(x: OutputVerdict, y: OutputVerdict) -> float:
    a, b = output_ratio(x) or 0.0, output_ratio(y) or 0.0
    return max(a, b) / max(min(a, b), 1e-9) if max(a, b) > 0.5 else 1.0


def _common(a: Verdict, b: Verdict) -> Iterator[tuple[OutputVerdict, OutputVerdict]]:
    after = _runs(b)
    for key, run in _runs(a).items():
        other = after.get(key)
        if other is not None:
            yield from zip(run.outputs, other.outputs, strict=False)


def _runs(verdict: Verdict) -> dict[tuple[str, int], Run]:
    return {(run.name, run.seed): run for run in verdict.runs}


def _by_name(verdict: Verdict) -> dict[str, Check]:
    """Of several checks of one name the worst."""
    found: dict[str, Check] = {}
    for check in verdict.checks:
        if check.name not in found or check.outcome == "fail":
            found[check.name] = check
    return found


def _place(verdict: Verdict) -> str:
    return verdict.failing.name if verdict.failing is not None else "no call"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
