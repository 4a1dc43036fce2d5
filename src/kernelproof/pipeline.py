"""The whole flow: problem -> candidate -> build -> check -> time -> record.

The only module that knows the order of the stages. Build and run of the candidate happen in a
worker process; the reference, the oracle and the verdict stay here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import random
import secrets
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kernelproof import candidate as candidates
from kernelproof import problem as problems
from kernelproof.ahead import Ahead, has_driver, many_processors
from kernelproof.candidate import find as find_candidate
from kernelproof.errors import CandidateError, UsageError, no_case
from kernelproof.importing import uncollected
from kernelproof.options import Options as Options
from kernelproof.spare import spare_memory
from kernelproof.subject import CandidateProcess, payload_of
from kernelproof.timeline import span
from kernelproof.types import (
    Call,
    Candidate,
    Case,
    Check,
    Evidence,
    Inspection,
    LibraryUse,
    Problem,
    Progress,
    Record,
    Timing,
    Verdict,
    silent,
)

if TYPE_CHECKING:
    from kernelproof.contestants import Race

_Value = TypeVar("_Value", Problem, Candidate)

# Languages whose kernels run on the CPU even where there is a GPU.
_CPU_LANGUAGES = ("cpp-c", "cpp-stable", "cpp-inline")
_USUAL = ("eager", "torch.compile", "CUDA graph of eager", "of the problem")
# Families and layouts at the default level end after this time; only large problems come near it.
_EXTRA_SECONDS = 60.0
# A call past 2^31 elements may take so long: most of it goes into moving gigabytes.
_LARGE_SECONDS = 600.0
# Cases with larger inputs are left out of an emulated check, unless it is thorough.
_EMULATED_BYTES = 4 << 20


def judge(
    problem: str | Path,
    candidate: str | Path,
    *,
    timed: bool = False,
    options: Options | None = None,
    progress: Progress = silent,
) -> Record:
    """Build, check and, with ``timed`` and a passing verdict, time a candidate.

    Raises:
        UsageError: no such problem or candidate, or a reference that does not run. Whatever the
            candidate does wrong is in the record instead.
    """
    options = options or Options()
    if options.large:
        patient = max(options.call_timeout, _LARGE_SECONDS)
        options = dataclasses.replace(options, call_timeout=patient)
    found = candidates.load(find_candidate(str(problems.find(problem)), candidate))
    with _ahead(options, found, timed) as ahead:
        job = _job(problem, found, options, timed)
        from kernelproof import screen

        ahead.start(_imports, anywhere=True)
        # Before anything of it runs: a candidate may change its own files.
        remarks = tuple(f"source: {note}" for note in screen.notes(found))
        with CandidateProcess(found, job.device, options, hidden(job.reference, found)) as subject:
            ahead.cuda(subject.worker)
            return _judged(job, subject, ahead, remarks, progress)


@dataclasses.dataclass(frozen=True)
class _Job:
    """What is to be judged, how and on what. ``race``: what is timed beside what; None for a check.
    ``master``: what all seeds come from."""

    reference: problems.Reference
    candidate: Candidate
    options: Options
    device: str
    master: int
    seeds: tuple[int, ...]
    race: Race | None


def _job(problem: str | Path, found: Candidate, options: Options, timed: bool) -> _Job:
    with span("import torch"), uncollected():
        import torch  # noqa: F401  a stage of its own: it takes a second, or some
    with span("load the problem"):
        sizes, training = dict(options.sizes), options.training
        reference = problems.load(problem, sizes, options.shrink_to, training)
    if options.case_sizes:
        case = _timed_case(reference, options)
        reference = reference.with_case(case, dict(options.case_sizes))
    device = device_for(options.device, found)
    if device == "cpu" and (options.sanitize or options.ncu):
        asked = "--sanitize" if options.sanitize else "--ncu"
        raise UsageError(
            f"{asked} watches kernels on an NVIDIA GPU, and {found.name} is judged on the CPU; "
            "leave it out, or see `kernelproof doctor` for what this machine lacks"
        )
    master = secrets.randbits(48) if options.seed is None else options.seed
    factor = 2 if options.level == "thorough" else 1
    seeds = _seeds(master, 1 if options.level == "quick" else factor * options.seeds)
    race = _race(reference, device, seeds[0], options) if timed else None
    return _Job(reference, found, options, device, master, seeds, race)


def _judged(
    job: _Job, subject: CandidateProcess, ahead: Ahead, remarks: tuple[str, ...],
    progress: Progress,
) -> Record:  # fmt: skip
    """Build, check, time, inspect."""
    from kernelproof import contestants, findings, physics
    from kernelproof import timed as timing_of
    from kernelproof.check.evidence import silent_worker

    reference, race = job.reference, job.race
    with contextlib.ExitStack() as stack:
        field = timing = None
        if race is not None and not subject.emulated:
            physics.prepare(job.device, ahead.wait, progress)
            payload = payload_of(reference, race.case, race.seed)
            field = stack.enter_context(contestants.Field(race, payload, job.master, ahead))
        seen = findings.Findings(
            reference, subject, job.seeds[0], job.options, ahead, race.case if race else None
        )
        verdict = _check(reference, subject, job.seeds, job.device, job.options, progress)
        # The memory that the oracle had is for the candidate and its rivals from now on.
        spare_memory(job.device)
        verdict = subject.audited(verdict)
        verdict = verdict.model_copy(update={"notes": (*verdict.notes, *remarks)})
        with contextlib.suppress(CandidateError):
            seen.ask()  # a worker that does not answer is asked again, and told of, below
        verdict = _gradients(reference, subject, verdict, job.seeds, job.options)
        verdict = _second_device(reference, subject, verdict, job.seeds, job.options)
        verdict = seen.tripped(verdict)
        # An emulated kernel has no time worth telling.
        if field is not None and verdict.status == "pass":
            ahead.settle()
            try:
                verdict, timing = timing_of.time(field, subject, verdict, progress)
            except CandidateError as error:
                verdict = silent_worker(verdict, error)
            if verdict.status in ("pass", "cheat", "crash"):
                # Of a cheat that a clock has found it may tell how.
                verdict = seen.tripped(verdict, again=True)
        verdict, library = seen.profiled(verdict)
        verdict, inspection = seen.inspection(verdict, timing)
    return _record(job, subject, verdict, timing, library, inspection)


def _imports() -> None:
    """What is needed once all is over."""
    from kernelproof import environment, report, reproducer, store  # noqa: F401

    environment.capture()


def _record(
    job: _Job, subject: CandidateProcess, verdict: Verdict, timing: Timing | None,
    library: LibraryUse | None, inspection: Inspection | None,
) -> Record:  # fmt: skip
    from kernelproof import environment, reproducer

    problem, portable = job.reference.problem, _portable(job.candidate, "path", "folder")
    source = Path(problem.path).read_text()
    return Record(
        id=uuid.uuid4().hex,
        created=datetime.datetime.now(datetime.timezone.utc),
        problem=_portable(problem, "path"),
        candidate=portable,
        build=subject.build(verdict),
        verdict=verdict,
        timing=timing if verdict.status == "pass" else None,
        uses_library_kernels=library,
        inspection=inspection,
        environment=environment.capture(),
        seed=job.master,
        seeds=job.seeds,
        reproducer=reproducer.script(problem, source, portable, verdict, job.seeds),
    )


def _ahead(options: Options, candidate: Candidate, timed: bool) -> Ahead:
    """What can be started before the problem is loaded, which imports torch."""
    device = options.device or ("cpu" if candidate.language in _CPU_LANGUAGES else "cuda")
    gpu = device != "cpu" and has_driver()
    ahead = Ahead(device if gpu else "cpu", gpu and many_processors())
    ahead.context()
    if timed:
        # Where none are named, about as many as there usually are; and the empty launch.
        names = options.baselines if options.baselines is not None else _USUAL
        ahead.spares([name.startswith("torch.compile") for name in names] + [False])
    return ahead


def hidden(reference: problems.Reference, candidate: Candidate) -> tuple[str, ...]:
    """What the candidate may not read: the problem. A shipped operator's own kernels are parts of
    one package with it, which they import. Raises UsageError where they are one file."""
    if Path(candidate.path) == Path(reference.problem.path).resolve():
        raise UsageError(
            f"{reference.problem.path} is the problem, which a candidate may not read: put class "
            "ModelNew into a file of its own"
        )
    package = Path(__file__).parent.resolve()
    shipped = package in Path(candidate.path).resolve().parents
    return () if shipped else (reference.problem.path,)


def _portable(value: _Value, *fields: str) -> _Value:
    """``value`` with its paths relative to the package or the current folder where they lie below
    it: a record is read on other machines."""
    package, here = Path(__file__).resolve().parents[1], Path.cwd().resolve()
    update = {}
    for field in fields:
        path = Path(getattr(value, field))
        for base in (package, here):
            if path.is_relative_to(base):
                update[field] = str(path.relative_to(base))
                break
    return value.model_copy(update=update)


@span("find the device")
def device_for(asked: str | None, candidate: Candidate) -> str:
    """Where a candidate runs: the device that is asked for, or the one that fits its language and
    this machine. Raises UsageError for one that is not here."""
    import torch

    if asked is None:
        gpu = torch.cuda.is_available() and candidate.language not in _CPU_LANGUAGES
        return "cuda" if gpu else "cpu"
    kind = asked.split(":")[0]
    if asked != "cpu" and kind != "cuda":
        raise UsageError(f"no device {asked!r}; there are cpu, cuda and cuda:<index>")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(f"device {asked!r}: torch sees no CUDA GPU here; see `kernelproof doctor`")
    if ":" in asked:
        count, index = torch.cuda.device_count(), asked.split(":")[1]
        if not index.isdigit() or int(index) >= count:
            raise UsageError(f"no device {asked!r}; there are cuda:0 to cuda:{count - 1}")
        torch.cuda.set_device(asked)
    return asked


def _seeds(master: int, count: int) -> tuple[int, ...]:
    draw = random.Random(master)
    return tuple(draw.getrandbits(31) for _ in range(count))


@span("check")
def _check(
    reference: problems.Reference, subject: CandidateProcess, seeds: tuple[int, ...], device: str,
    options: Options, progress: Progress,
) -> Verdict:  # fmt: skip
    from kernelproof.check import Plan, check

    evidence: Evidence = "cpu" if device == "cpu" else "device"
    level, most = options.level, options.max_bytes
    if subject.emulated:
        if options.large:
            raise UsageError("--large needs a GPU for this candidate; it would be emulated here")
        evidence = "emulated"
        if level != "thorough":
            seeds, level = seeds[:1], "quick"
            most = most if most is not None else _EMULATED_BYTES
    plan = Plan(
        seeds=seeds,
        device=device,
        evidence=evidence,
        other_seeds=4 if options.level == "thorough" else 2,
        level=level,
        extra_seconds=math.inf if options.level == "thorough" else _EXTRA_SECONDS,
        cases=options.cases,
        # A problem that could not be shrunk enough is left out, and the verdict says so.
        max_bytes=most if most is not None else options.shrink_to,
        large=options.large,
    )
    verdict = check(reference, subject, plan, progress)
    if level != options.level:
        text = "not tried where kernels are emulated, unless --thorough asks for it"
        left_out = Check(name="strides, families of values", outcome="note", message=text)
        verdict = verdict.model_copy(update={"checks": (*verdict.checks, left_out)})
    return verdict


@span("gradients")
def _gradients(
    reference: problems.Reference, subject: CandidateProcess, verdict: Verdict,
    seeds: tuple[int, ...], options: Options,
) -> Verdict:  # fmt: skip
    """The verdict with what the first case's gradients tell."""
    if verdict.status != "pass" or subject.emulated or options.level == "quick":
        return verdict
    from kernelproof.check import Plan, gradients
    from kernelproof.timed import failed

    case = _timed_case(reference, options)
    subject.construct(*payload_of(reference, case, seeds[0]))
    plan = Plan(seeds=seeds, device=subject.device)
    found = gradients.judge(reference, plan, case, lambda x: subject.gradients(x, seeds[0]))
    subject.revive()
    if found is None or found.outcome != "fail":
        return verdict.model_copy(
            update={"checks": (*verdict.checks, *([found] if found is not None else []))}
        )
    return failed(verdict, "wrong", [found], Call(case=case.name, seed=seeds[0]))


@span("second device")
def _second_device(
    reference: problems.Reference, subject: CandidateProcess, verdict: Verdict,
    seeds: tuple[int, ...], options: Options,
) -> Verdict:  # fmt: skip
    """The verdict with how the candidate fares on another GPU than the current one, where there are
    two. A note: most kernels that people write take the current device for granted."""
    import torch

    here = subject.device
    if verdict.status != "pass" or here == "cpu" or options.level == "quick":
        return verdict
    if torch.cuda.device_count() < 2:
        return verdict
    from kernelproof.check import Plan, check

    other = "cuda:0" if here.endswith(":1") else "cuda:1"
    case = _timed_case(reference, options).name
    plan = Plan(seeds=seeds[:1], device=other, evidence="device", cases=(case,))
    # The reference has the device to itself: that the current one is another is for the candidate.
    with subject.another(other) as elsewhere, torch.cuda.device(other):
        found = check(reference, elsewhere, plan)
    name, text = "second device", ""
    if found.status != "pass":
        text = f"on {other} while {here} is current: {found.status}: {found.message}. "
        text += "A launch needs the device of its tensors (CUDAGuard, torch.cuda.device)"
    told = Check(name=name, outcome="note" if text else "pass", message=text)
    return verdict.model_copy(update={"checks": (*verdict.checks, told)})


@span("what to time beside")
def _race(reference: problems.Reference, device: str, seed: int, options: Options) -> Race:
    """What is timed beside what: found before the check, since a name may be wrong."""
    from kernelproof import baselines, contestants, rivals

    case = _timed_case(reference, options)
    others = [
        dataclasses.replace(rival, hides=hidden(reference, rival.candidate))
        for rival in rivals.find(options.vs, reference, case, device, options.store)
    ]
    beside = baselines.chosen(reference, case, device, options.baselines)
    return contestants.Race(reference, case, device, seed, beside, others, options)


def _timed_case(reference: problems.Reference, options: Options) -> Case:
    cases = {case.name: case for case in reference.problem.cases}
    name = options.cases[0] if options.cases else next(iter(cases))
    if name not in cases:
        raise UsageError(f"{reference.problem.name} {no_case(name, cases)}")
    return cases[name]
