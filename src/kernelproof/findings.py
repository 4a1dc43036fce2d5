"""What is found out about a candidate beside its verdict and its times: what its process was seen
to do, where one call spends its time, and what its kernels take.

The last need a process of their own, and run beside the check where `ahead` allows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernelproof import intruders
from kernelproof.ahead import Ahead
from kernelproof.check import evidence
from kernelproof.errors import CandidateError
from kernelproof.problem import Reference
from kernelproof.subject import QUICK_TO_COMPILE, CandidateProcess, payload_of
from kernelproof.timeline import span
from kernelproof.types import Case, Check, Inspection, LibraryUse, Timing, Verdict

if TYPE_CHECKING:
    from kernelproof.options import Options

# Larger cases are not profiled on a CPU where there are others.
_PROFILED_BYTES = 16 << 20


class Findings:
    """Of one candidate.

    Args:
        timed: the case that will be timed; None where none will.
    """

    def __init__(
        self, reference: Reference, subject: CandidateProcess, seed: int, options: Options,
        ahead: Ahead, timed: Case | None,
    ) -> None:  # fmt: skip
        self.reference = reference
        self.subject = subject
        self.seed = seed
        self.options = options
        self.ahead = ahead
        self.timed = timed
        self._told: dict[str, Any] | None = None
        self._inspected: Callable[[Timing], Inspection] | None = None
        if ahead.many and subject.candidate.language in QUICK_TO_COMPILE:
            self._begin()
        elif ahead.many:
            # Not sooner: two processes would build it at the same time, for a minute.
            subject.once_built = self._begin

    def _begin(self) -> None:
        # A reference that does not run is the check's affair.
        with contextlib.suppress(Exception):
            self._inspected = self._started_inspection()

    def tripped(self, verdict: Verdict, again: bool = False) -> Verdict:
        """The verdict with what the tripwires have seen so far; ``again``, after the timing, only
        with what fails. A crash may be that of what measures, where the candidate has replaced
        it."""
        checks, lost = self._tripped(verdict)
        if lost is not None:
            return lost
        shown = [check for check in checks if not again or check.outcome == "fail"]
        return evidence.with_checks(verdict, shown, ("pass", "crash") if again else ("pass",))

    @span("profile")
    def profiled(self, verdict: Verdict) -> tuple[Verdict, LibraryUse | None]:
        """The verdict with what a profile of one call tells; and the profile. To be asked for when
        all else is over: CUPTI may stay attached to a process in which something was profiled."""
        if verdict.status != "pass" or not self.subject.built or self.subject.emulated:
            return verdict, None
        try:
            told = self._profile()
            use = evidence.library_use(told, self.subject.candidate.language)
        except CandidateError as error:
            text = f"no profile: {error.message}"
            check = Check(name="profile", outcome="note", message=text)
            return evidence.with_checks(verdict, [check]), None
        if use is None:
            return verdict, None
        forbidden = bool(getattr(self.reference.module, "OWN_KERNELS", False))
        return evidence.with_checks(verdict, [evidence.library_check(use, forbidden)]), use

    def _tripped(self, verdict: Verdict) -> tuple[list[Check], Verdict | None]:
        """Checks of the tripwires, and of what else was seen; or the verdict where they could not
        be asked."""
        strange = ["its process runs another program"] if self.subject.worker.replaced else []
        seen = evidence.intruded([*intruders.taken(), *strange])
        try:
            self.ask()
        except CandidateError as error:
            return [], evidence.silent_worker(verdict, error)
        if self._told is None:
            return seen, None
        path = self.reference.problem.path
        return [*seen, *evidence.tripped(self._told["tripwires"], path)], None

    def ask(self) -> None:
        """Hear what the tripwires have seen so far, before something that may end the worker: what
        another one has seen since it took its place says nothing of that. Raises CandidateError."""
        if self.subject.worker.alive and self.subject.loaded:
            self._told = self.subject.traced(None)

    @span("inspection")
    def inspection(
        self, verdict: Verdict, timing: Timing | None
    ) -> tuple[Verdict, Inspection | None]:
        """What the kernels of a timed candidate take and what holds them back, or why not."""
        if timing is None or verdict.status != "pass" or timing.device == "cpu":
            return verdict, None
        inspected = self._inspected or self._started_inspection()
        if inspected is None:
            return verdict, None
        try:
            found = inspected(timing)
            checks = [_sanitized(found)] if self.options.sanitize else []
            return evidence.with_checks(verdict, checks), found
        except CandidateError as error:
            notes = (*verdict.notes, f"not inspected: {error.message}")
            return verdict.model_copy(update={"notes": notes}), None

    def _profile(self) -> dict[str, Any]:
        case = self._profiled_case()
        self.subject.revive()
        self.subject.construct(*payload_of(self.reference, case, self.seed))
        inputs = self.reference.drawn(case, self.seed)
        return dict(self.subject.traced(inputs)["profile"])

    def _started_inspection(self) -> Callable[[Timing], Inspection] | None:
        if self.timed is None:
            return None
        from kernelproof import inspecting

        return inspecting.beside_check(
            self.subject.candidate, self.reference, self.timed, self.ahead,
            self.options.sanitize, self.options.ncu,
        )  # fmt: skip

    def _profiled_case(self) -> Case:
        """On a CPU the case with the largest inputs that are not huge: what Python does between
        kernels then takes little of a call. On a GPU, where only kernels count, the first."""
        options, cases = self.options, self.reference.problem.cases
        chosen = [c for c in cases if not options.cases or c.name in options.cases]
        if self.subject.device != "cpu":
            return self.timed or chosen[0]
        sizes = {case.name: self.reference.input_bytes(case) for case in chosen}
        most = options.max_bytes if options.max_bytes is not None else _PROFILED_BYTES
        fitting = [case for case in chosen if sizes[case.name] <= most]
        return max(fitting or chosen[:1], key=lambda case: sizes[case.name])


def _sanitized(found: Inspection) -> Check:
    """What compute-sanitizer says, as a check. A note: its tools also report what is harmless."""
    text = "; ".join(one.words for one in found.findings)
    return Check(name="compute-sanitizer", outcome="note" if text else "pass", message=text)
