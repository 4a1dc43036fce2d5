"""Judge a candidate: run the course of a check and draw the verdict from it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kernelproof.check import budget, smallest
from kernelproof.check.course import Course
from kernelproof.check.plan import Plan, Subject
from kernelproof.errors import CandidateError
from kernelproof.types import Progress, Verdict, silent

if TYPE_CHECKING:
    from kernelproof.problem import Reference


def check(
    reference: Reference,
    subject: Subject,
    plan: Plan,
    progress: Progress = silent,
) -> Verdict:
    """Judge ``subject`` against ``reference``; errors of the candidate become the verdict.

    Raises:
        ProblemError: the reference itself does not run.
    """
    started = time.perf_counter()
    course = Course(reference, subject, plan, progress)
    status, message, detail = "pass", "", ""
    try:
        course.run()
    except CandidateError as error:
        status, message, detail = error.status, error.message, error.detail
    runs = (*course.runs, *course.extra)
    failed = next((run for run in runs if run.status != "pass"), None)
    if status == "pass" and failed is not None:
        status, message = failed.status, failed.message
    if status == "pass" and not course.runs:
        status, message = "unsupported", "no case could be run: " + course.skipped()
    at, prints = course.at, "" if status == "pass" else course.fingerprint()
    found = course.smallest(failed) if status == "wrong" and failed is not None else None
    if found is not None:
        message += ". " + smallest.describe(found, reference)
    outputs = [output for run in course.runs for output in run.outputs]
    return Verdict(
        status=status,  # type: ignore[arg-type]
        proof=status == "pass",
        compat=bool(outputs) and all(o.compat for o in outputs) and status in ("pass", "wrong"),
        evidence=plan.evidence,
        device=plan.device,
        limit=budget.LIMIT,
        message=message,
        detail=detail,
        runs=runs,
        checks=tuple(course.checks.values()),
        looks_like=next((o.looks_like for o in outputs if o.looks_like), ""),
        notes=tuple(course.notes),
        seconds=time.perf_counter() - started,
        smallest=found,
        failing=None if status == "pass" else at,
        fingerprint=prints,
    )
