"""What is known of how a candidate came to its answers, beside the answers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelproof.errors import CandidateError
from kernelproof.types import Check, LibraryUse, Status, Verdict

# Share of a call in operators or kernels of libraries from which a candidate that claims kernels of
# its own is named for it.
_NAMED = 0.5
# What a problem that forbids library kernels lets pass: sums over few numbers and the like.
_FORBIDDEN = 0.1
_MOST = 4


def tripped(report: dict[str, Any], problem_path: str) -> list[Check]:
    """Checks of a worker's tripwires; a replaced function fails, a look around is a note."""
    patched = [str(name) for name in report["patched"]]
    seen = [str(text) for text in report["seen"]]
    problem = Path(problem_path)
    for opened in report["opened"]:
        if Path(str(opened)).name == problem.name and problem.name != "candidate.py":
            seen.append(f"opens the problem's source ({opened})")
    checks = [
        Check(
            name="functions of the judge, torch and Python unchanged",
            outcome="fail" if patched else "pass",
            message=f"the candidate replaced {_some(patched)} in its process" if patched else "",
        )
    ]
    checks += [Check(name="looks around", outcome="note", message=text) for text in seen[:_MOST]]
    if int(report["threads"]) > 0:
        text = f"the candidate keeps {int(report['threads'])} Python thread(s) running"
        checks.append(Check(name="threads", outcome="note", message=text))
    if report["settings"]:
        text = f"it leaves settings of the whole process changed: {_some(report['settings'])}"
        checks.append(Check(name="settings", outcome="note", message=text))
    return checks


def intruded(seen: Sequence[str]) -> list[Check]:
    """A failed check where a candidate's process came to where none may come; see `intruders`."""
    if not seen:
        return []
    return [Check(name="stays in its process", outcome="fail", message=_some(seen))]


def library_use(profile: dict[str, Any], language: str) -> LibraryUse | None:
    """Where a profiled call spent its time; None where nothing of it was measured."""
    seconds, library = float(profile["seconds"]), float(profile["library"])
    if not seconds > 0:
        return None
    return LibraryUse(
        share=min(1.0, library / seconds),
        names=tuple(str(name) for name in profile["names"]),
        claims=language,
    )


def library_check(use: LibraryUse, forbidden: bool) -> Check:
    """Whether a candidate that claims kernels of its own leaves the work to a library."""
    name = "own kernels"
    words = f"{use.share:.0%} of a call is spent in {_some(use.names)}"
    if forbidden and use.share > _FORBIDDEN:
        return Check(
            name=name, outcome="fail", message=f"the problem asks for own kernels: {words}"
        )
    if use.claims != "pytorch" and use.share > _NAMED:
        return Check(name=name, outcome="note", message=f"{use.claims} candidate, but {words}")
    return Check(name=name, outcome="pass")


def with_checks(
    verdict: Verdict, checks: Sequence[Check], turned: Sequence[Status] = ("pass",)
) -> Verdict:
    """``verdict`` with ``checks``; the first failed one turns one of a status of ``turned`` into a
    cheat."""
    verdict = verdict.model_copy(update={"checks": (*verdict.checks, *checks)})
    bad = next((check for check in checks if check.outcome == "fail"), None)
    if bad is None or verdict.status not in turned:
        return verdict
    return verdict.model_copy(
        update={"status": "cheat", "proof": False, "compat": False, "message": bad.message}
    )


def silent_worker(verdict: Verdict, error: CandidateError) -> Verdict:
    """A passing verdict, turned because the worker could not be asked any more."""
    if verdict.status != "pass":
        return verdict
    return verdict.model_copy(
        update={
            "status": error.status, "proof": False, "compat": False, "message": error.message,
            "detail": error.detail,
        }
    )  # fmt: skip


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
