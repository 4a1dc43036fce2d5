"""What each call of a session does with a candidate."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

from kernelproof import candidate as candidates
from kernelproof import diagnosis, lease, pipeline, sources
from kernelproof import problem as problems
from kernelproof.errors import CandidateError
from kernelproof.report.text import main_clock, main_series, ratio_to
from kernelproof.report.verdicts import fewest_bits, worst_ratio
from kernelproof.subject import CandidateProcess, payload_of
from kernelproof.types import (
    Candidate,
    Diagnostic,
    Inspection,
    KernelFacts,
    Progress,
    Record,
    Rules,
    Status,
    Summary,
    Verdict,
    What,
)

_PLAIN_SEED = 0
NO_FIGURES = Summary()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The part of a `CallAnswer` that the candidate decides."""

    status: Status
    message: str
    summary: Summary = NO_FIGURES
    diagnostics: tuple[Diagnostic, ...] = ()
    detail: str = ""
    kernels: tuple[KernelFacts, ...] = ()
    inspection: Inspection | None = None
    record: Record | None = None
    record_id: str = ""
    notes: tuple[str, ...] = ()


def make(
    what: What, path: Path, problem: str, rules: Rules, store: str | None, progress: Progress
) -> Outcome:
    """Carry out a call. Whatever the candidate does wrong is in the outcome.

    Raises:
        UsageError: as `pipeline.judge` and `inspecting.inspect`.
    """
    found = candidates.load(path)
    device = pipeline.device_for(rules.device, found)
    if what in ("compile", "inspect"):
        with _leased(device if what == "inspect" else "", progress):
            progress(what, 0, 1)
            return _looked_at(what, found, path, problem, rules, device)
    options = pipeline.Options(
        device=rules.device, seeds=rules.seeds, cases=rules.cases, max_bytes=rules.max_bytes,
        sizes=rules.sizes, shrink_to=rules.shrink_to, baselines=rules.baselines,
        rounds=rules.rounds, seconds=rules.timing_seconds, call_timeout=rules.call_timeout,
        level=rules.submit_level if what == "submit" else rules.level, store=store,
    )  # fmt: skip
    timed = what != "check"
    with _leased(device if timed or device != "cpu" else "", progress):
        record = pipeline.judge(problem, path, timed=timed, options=options, progress=progress)
    return _judged(record, found, timed)


@contextlib.contextmanager
def _leased(device: str, progress: Progress) -> Iterator[None]:
    """Hold ``device``; "" needs none. A CPU is leased only for times."""
    if not device:
        yield
        return
    with lease.hold(lease.device_key(device), progress):
        yield


def _looked_at(
    what: What, found: Candidate, path: Path, problem: str, rules: Rules, device: str
) -> Outcome:
    from kernelproof import inspecting

    try:
        if found.for_gpu:
            case = rules.cases[0] if rules.cases else None
            wish = inspecting.Wish(problem=problem, case=case)
            seen = inspecting.inspect(str(path), wish, run=what == "inspect")
            kernels = seen.kernels
            count = len(kernels)
            text = f"compiles: {count} kernel{'' if count == 1 else 's'} for {seen.arch}"
            return Outcome(
                status="pass", message=text, inspection=seen, kernels=kernels, notes=seen.notes,
                summary=with_kernels(Summary(evidence="compiled"), kernels),
            )  # fmt: skip
        if what == "inspect":
            text = f"{found.language} code has no kernel for a GPU to inspect; bench times it"
            return Outcome(status="unsupported", message=text)
        return _built(found, problem, rules, device)
    except CandidateError as error:
        return failed(error.status, error.message, error.detail, found)  # type: ignore[arg-type]


def _built(found: Candidate, problem: str, rules: Rules, device: str) -> Outcome:
    """Import and construct a candidate in its worker, where it is compiled."""
    reference = problems.load(problem, dict(rules.sizes), rules.shrink_to)
    cases = {case.name: case for case in reference.problem.cases}
    case = cases[rules.cases[0]] if rules.cases else next(iter(cases.values()))
    options = pipeline.Options(call_timeout=rules.call_timeout)
    with CandidateProcess(found, device, options, pipeline.hidden(reference, found)) as subject:
        weights = subject.construct(*payload_of(reference, case, _PLAIN_SEED))
    text = "imports and constructs" if found.language == "pytorch" else "compiles and constructs"
    return Outcome(
        status="pass", message=f"{text}; weights: {weights}", summary=Summary(evidence="compiled")
    )


def _judged(record: Record, found: Candidate, timed: bool) -> Outcome:
    verdict = record.verdict
    summary = _summary(verdict, record)
    kernels = record.inspection.kernels if record.inspection is not None else ()
    notes = verdict.notes
    if timed and record.status == "pass" and record.timing is None:
        notes = (*notes, "no times: the kernels were emulated, which says nothing of their speed")
    outcome = failed(record.status, verdict.message, verdict.detail or record.build.detail, found)
    return dataclasses.replace(
        outcome, summary=with_kernels(summary, kernels), kernels=kernels, record=record,
        record_id=record.id, inspection=record.inspection, notes=notes,
    )  # fmt: skip


def failed(status: Status, message: str, detail: str, found: Candidate) -> Outcome:
    """An outcome with the places of a compiler's errors, where it is one of these."""
    diagnostics: tuple[Diagnostic, ...] = ()
    if status == "compile_error":
        # What was deleted since is no source any more.
        with contextlib.suppress(OSError):
            diagnostics = diagnosis.errors(message, detail, sources.of_candidate(found).files)
    return Outcome(status=status, message=message, detail=detail, diagnostics=diagnostics)


def _summary(verdict: Verdict, record: Record) -> Summary:
    ran = bool(verdict.runs)
    summary = Summary(
        evidence=verdict.evidence, bits=fewest_bits(verdict), worst=worst_ratio(verdict),
        limit=verdict.limit if ran else None, compat=verdict.compat if ran else None,
    )  # fmt: skip
    timing = record.timing
    series = main_series(timing.candidate, timing) if timing is not None else None
    if timing is None or series is None:
        return summary
    clock = main_clock(timing)
    return summary.model_copy(
        update={
            "time": (series.median, series.low, series.high), "clock": clock,
            "eager": ratio_to(timing, "eager", clock),
        }
    )  # fmt: skip


def with_kernels(summary: Summary, kernels: tuple[KernelFacts, ...]) -> Summary:
    """The summary with the most that any kernel takes."""
    if not kernels:
        return summary
    spilled = [
        k.spill_stores + k.spill_loads
        for k in kernels
        if k.spill_stores is not None and k.spill_loads is not None
    ]
    shared = [k.shared_bytes + (k.launch.shared if k.launch is not None else 0) for k in kernels]
    return summary.model_copy(
        update={
            "registers": max(k.registers for k in kernels),
            "spilled": max(spilled, default=None),
            "shared": max(shared),
        }
    )
