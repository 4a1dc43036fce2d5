"""The smallest case at which a candidate still fails: that is the one to debug."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernelproof.errors import CandidateError, ProblemError
from kernelproof.types import Case, Problem, Run

if TYPE_CHECKING:
    from kernelproof.problem import Reference

CALLS = 12  # calls of the candidate at most
_SECONDS = 10.0  # no further call after this time
_REFUSED = 24  # sizes that the reference may refuse before the search ends


def after(
    failed: Run, runs: Sequence[Run], reference: Reference, fails: Callable[[Case], bool]
) -> Case | None:
    """`search` from where a check ended; None as well where ``failed`` has right values (and broke
    a rule that sizes do not change), or is a variant (its inputs are not what the sizes draw)."""
    if failed.variant.label or all(output.passed for output in failed.outputs):
        return None
    problem = reference.problem
    failing = next(case for case in problem.cases if case.name == failed.case)
    passed = frozenset(run.case for run in runs if run.status == "pass")
    return search(reference.module.get_inputs, problem, failing, fails, passed)


def search(
    get_inputs: Callable[..., Any],
    problem: Problem,
    failing: Case,
    fails: Callable[[Case], bool],
    done: frozenset[str] = frozenset(),
) -> Case | None:
    """Try the problem's smaller cases, then halves of the integer arguments.

    Args:
        fails: judges one case on its values; raises CandidateError when the candidate broke (the
            search ends with what it has) and ProblemError where the reference refuses the sizes.
        done: names of cases that passed already.

    Returns:
        The smallest that failed; None where no smaller one than ``failing`` did. One that was made
        by halving has the name "smallest" and all sizes.
    """
    hunt = _Hunt(fails)
    full = _full_sizes(get_inputs, failing)
    try:
        for case in _smaller(get_inputs, problem, failing, done)[: CALLS // 3]:
            if hunt.fails_on(case):
                full = _full_sizes(get_inputs, case)
                break
        _halve(full, hunt)
    except (_Over, CandidateError):
        # What is known by then stands; a candidate that broke cannot be asked further.
        pass
    return hunt.best


def describe(case: Case, reference: Reference) -> str:
    """Such as "Smallest failing case: one_row, rows=1, columns=65": the sizes, and whatever else
    differs from the default."""
    get_inputs = reference.module.get_inputs
    sizes = _full_sizes(get_inputs, case)
    defaults = _full_sizes(get_inputs, Case(name=""))
    shown = [
        f"{key}={value}"
        for key, value in sizes.items()
        if _is_size(value) or value != defaults.get(key, value)
    ]
    name = [] if case.name == "smallest" else [case.name]
    return "Smallest failing case: " + ", ".join([*name, *shown])


class _Over(Exception):
    """No further tries."""


class _Hunt:
    def __init__(self, fails: Callable[[Case], bool]) -> None:
        self.fails = fails
        self.calls = 0
        self.refused = 0
        self.end = time.monotonic() + _SECONDS
        self.best: Case | None = None

    def fails_on(self, case: Case) -> bool:
        if self.calls >= CALLS or self.refused >= _REFUSED or time.monotonic() > self.end:
            raise _Over
        try:
            self.calls += 1
            failed = self.fails(case)
        except ProblemError:
            # The candidate was not asked.
            self.calls -= 1
            self.refused += 1
            return False
        if failed:
            self.best = case
        return failed


def _halve(sizes: dict[str, Any], hunt: _Hunt) -> None:
    """All sizes together while that fails, then each alone, the largest first."""
    current = dict(sizes)
    while _whole(current):
        attempt = current | {key: value // 2 for key, value in _whole(current).items()}
        if not hunt.fails_on(Case(name="smallest", sizes=attempt)):
            break
        current = attempt
    stuck: set[str] = set()
    while left := {k: v for k, v in _whole(current).items() if k not in stuck}:
        key = max(left, key=lambda k: left[k])
        attempt = current | {key: left[key] // 2}
        if hunt.fails_on(Case(name="smallest", sizes=attempt)):
            current = attempt
        else:
            stuck.add(key)


def _smaller(
    get_inputs: Callable[..., Any], problem: Problem, failing: Case, done: frozenset[str]
) -> list[Case]:
    """Declared cases that are smaller than ``failing``, smallest first."""
    size = _volume(_full_sizes(get_inputs, failing))
    sized = [(_volume(_full_sizes(get_inputs, c)), c) for c in problem.cases if c.name not in done]
    return [c for v, c in sorted(sized, key=lambda pair: pair[0]) if 0 < v < size]


def _full_sizes(get_inputs: Callable[..., Any], case: Case) -> dict[str, Any]:
    """All keyword arguments of ``get_inputs`` for ``case``, defaults included."""
    parameters = inspect.signature(get_inputs).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    return given | dict(case.sizes)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _whole(sizes: Mapping[str, Any]) -> dict[str, int]:
    """The sizes that can be halved."""
    return {key: value for key, value in sizes.items() if _is_size(value) and value > 1}


def _volume(sizes: Mapping[str, Any]) -> int:
    counts = [v for v in sizes.values() if isinstance(v, int) and not isinstance(v, bool)]
    return math.prod(max(v, 0) for v in counts)
