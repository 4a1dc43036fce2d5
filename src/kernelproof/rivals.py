"""Other candidates to be timed beside: files, and the best one that the record store knows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelproof import candidate as candidates
from kernelproof.errors import CandidateError, UsageError
from kernelproof.timed_worker import TimedCandidate
from kernelproof.types import Candidate, Case, Problem, Record

if TYPE_CHECKING:
    from kernelproof.problem import Reference

BEST = "best"
# Outputs of a rival that are compared: it is not judged, and a reference may be slow.
_COMPARED = 2


@dataclasses.dataclass(frozen=True)
class Rival:
    """Another candidate, under which name it is timed, and which files it may not read."""

    name: str
    candidate: Candidate
    hides: tuple[str, ...] = ()


def find(
    vs: Sequence[str], reference: Reference, case: Case, device: str, store: str | None
) -> list[Rival]:
    """Those that ``vs`` names: paths, words for a shipped operator's kernels, or "best".

    Raises:
        UsageError: there is none, it cannot run on ``device``, or the best is no longer what it
            was when it was recorded.
    """
    found: list[Rival] = []
    for text in vs:
        if text == BEST:
            candidate = _best(reference.problem, case, device, store)
            name = f"best record: {candidate.name}"
        else:
            path = candidates.find(reference.problem.path, text)
            candidate = candidates.load(path)
            name = f"vs {candidate.name}"
        if device == "cpu" and candidate.for_gpu:
            raise UsageError(
                f"--vs {text}: {candidate.name} is {candidate.language} code, and this run is on "
                "the CPU; --vs takes candidates for the same device"
            )
        taken = sum(other.name.split(" #")[0] == name for other in found)
        found.append(Rival(f"{name} #{taken + 1}" if taken else name, candidate))
    return found


def _best(problem: Problem, case: Case, device: str, store: str | None) -> Candidate:
    from kernelproof import environment
    from kernelproof.store import Store

    here = environment.capture()
    machine = here.cpu if device == "cpu" else here.gpu
    kept = Store(store)
    records = [r for r in kept.passing(problem.name) if _comparable(r, problem, case, machine)]
    timed = [(seconds, r) for r in records if (seconds := _seconds(r)) is not None]
    if not timed:
        raise UsageError(
            f"--vs best: {kept.url} has no timed record of {problem.name}, case {case.name}, that "
            f"passed on {machine}; run `kernelproof bench` on a candidate first"
        )
    _, record = min(timed, key=lambda pair: pair[0])
    return _unchanged(record)


def _comparable(record: Record, problem: Problem, case: Case, machine: str) -> bool:
    timing, made = record.timing, record.environment
    if timing is None or timing.case != case.name:
        return False
    same = record.problem.digest == problem.digest and record.problem.sizes == problem.sizes
    return same and machine == (made.cpu if timing.device == "cpu" else made.gpu)


def _seconds(record: Record) -> float | None:
    assert record.timing is not None
    series = record.timing.candidate.device or record.timing.candidate.host
    return None if series is None else series.median


def _unchanged(record: Record) -> Candidate:
    """The record's candidate, if its sources are still there and the same. A path in a record is
    relative to the package or to the folder in which it was made, where it lay below."""
    was = record.candidate
    where = was.folder if Path(was.folder).name == was.name else was.path
    tried = [base / where for base in (Path.cwd(), Path(__file__).resolve().parents[1])]
    for path in tried:
        if path.exists():
            now = candidates.load(path)
            if now.digest == was.digest:
                return now
            raise UsageError(
                f"--vs best: record {record.id[:12]} is the best, but {path} has changed since "
                f"(digest {now.digest[:12]}, then {was.digest[:12]}); bench it again, or name a "
                "file with --vs"
            )
    raise UsageError(
        f"--vs best: record {record.id[:12]} is the best, but its candidate is not at {where}; run "
        "in the folder where it was judged, or name a file with --vs"
    )


class TimedRival(TimedCandidate):
    """A rival in a worker of its own, which loads it when it is prepared."""

    def _prepared(self) -> dict[str, Any]:
        self.subject.construct(*self.payload)
        imported = self.subject.import_seconds
        self.built = imported, self.subject.build_seconds - imported
        return super()._prepared()

    def untimed(self, inputs: list[Any], seed: int, times: int) -> Any:
        """Calls in a new process, which knows of no timing."""
        with self.subject.another() as again:
            again.construct(*self.payload)
            return again.call(inputs, seed, False, times)


def mismatch(name: str, rival: TimedRival, judge: Any) -> str:
    """A note where what ``rival`` computed while it was timed, of which a few outputs are drawn, is
    not what the reference gives.

    Args:
        judge: see `check.timed.judge`; takes the outputs and the calls that are not timed.
    """
    assert rival.picks is not None
    held = rival.picks.held
    try:
        chosen = random.SystemRandom().sample(held, min(_COMPARED, len(held)))
        found = judge(chosen, rival.untimed)
    except CandidateError as error:
        return f"{name}: its output was not compared: {error.message}"
    if found.status == "pass":
        return ""
    return f"{name} does not compute the same function: {found.check.message}"
