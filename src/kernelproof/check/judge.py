"""The course of a check: cases, seeds, guards, and the verdict over all of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from kernelproof.check import budget, smallest
from kernelproof.check.compare import Expected, compare
from kernelproof.check.expected import DRAWS, expect
from kernelproof.check.explain.history import History, fingerprint
from kernelproof.check.pooling import Pool
from kernelproof.check.reference import ReferenceModel, flatten, identical, to_device
from kernelproof.errors import CandidateError, ProblemError
from kernelproof.types import Case, Check, Evidence, Progress, Run, Verdict, silent

if TYPE_CHECKING:
    from kernelproof.problem import Reference


# More seeds for a case whose errors have a structure that the plan's few do not make certain.
_MORE_SEEDS = 6


class Subject(Protocol):
    """The candidate, wherever it runs."""

    def construct(
        self, args: list[Any], kwargs: dict[str, Any], seed: int, state: dict[str, torch.Tensor]
    ) -> None:
        """Make a ModelNew with these arguments and weights ready for `call`."""

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        """Run it; one dict a run with ``output``, ``mutated``, ``views_input``, ``reused`` and
        ``devices``."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    ``seeds``: for the first case; the others take the first ``other_seeds`` of them. ``cases``:
    names to run, all when empty. ``max_bytes``: cases with larger inputs are left out, and that is
    said.
    """

    seeds: tuple[int, ...]
    device: str = "cpu"
    evidence: Evidence = "cpu"
    other_seeds: int = 2
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None


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
    course = _Course(reference, subject, plan, progress)
    status, message, detail = "pass", "", ""
    try:
        course.run()
    except CandidateError as error:
        status, message, detail = error.status, error.message, error.detail
    failed = next((run for run in course.runs if run.status != "pass"), None)
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
        runs=tuple(course.runs),
        checks=tuple(course.checks.values()),
        looks_like=next((o.looks_like for o in outputs if o.looks_like), ""),
        notes=tuple(course.notes),
        seconds=time.perf_counter() - started,
        smallest=found,
        failing=None if status == "pass" else at,
        fingerprint=prints,
    )


@dataclasses.dataclass(frozen=True)
class _Seen:
    """One call: what came back, what should have, and the judgement of the values."""

    run: Run
    results: Any
    inputs: list[Any]
    model: ReferenceModel
    expected: list[tuple[str, Expected]]
    changed: list[int]
    views: bool


class _Course:
    def __init__(
        self, reference: Reference, subject: Subject, plan: Plan, progress: Progress
    ) -> None:
        self.reference = reference
        self.subject = subject
        self.plan = plan
        self.progress = progress
        self.runs: list[Run] = []
        self.notes: list[str] = []
        self.checks: dict[str, Check] = {}
        self.pool = Pool()
        self._key: Any = None
        self._constructed = False
        self._model: ReferenceModel | None = None
        self._history = History()
        self.at: tuple[str, int] | None = None

    def run(self) -> None:
        problem = self.reference.problem
        unknown = set(self.plan.cases) - {case.name for case in problem.cases}
        if unknown:
            names = ", ".join(case.name for case in problem.cases)
            raise ProblemError(f"{problem.name} has no case {sorted(unknown)}; it has {names}")
        chosen = [c for c in problem.cases if not self.plan.cases or c.name in self.plan.cases]
        for number, case in enumerate(chosen):
            seeds = self.plan.seeds if number == 0 else self.plan.seeds[: self.plan.other_seeds]
            self.progress(f"check {case.name}", number, len(chosen))
            self.pool = Pool()
            for seed in seeds:
                if not self._one(case, seed):
                    return
            if not self._structure(case, seeds):
                return

    def _structure(self, case: Case, seeds: tuple[int, ...]) -> bool:
        """The structure of the case's errors over all its seeds; False for a wrong formula."""
        more = [*self.plan.seeds[len(seeds) :], *(seeds[0] + n for n in range(1, 1 + _MORE_SEEDS))]
        if self.pool.wants_more():
            for seed in [s for s in more if s not in seeds][: max(0, _MORE_SEEDS - len(seeds))]:
                if not self._one(case, seed):
                    return False
        mistakes = getattr(self.reference.module, "MISTAKES", {})
        found = self.pool.finding(lambda: self._inputs(case, seeds[0]), seeds[0], mistakes)
        if found is None:
            return True
        name = "error structure"
        message = "" if found.outcome == "pass" else f"case {case.name}: {found.message}"
        if name not in self.checks or found.outcome != "pass":
            self.checks[name] = Check(name=name, outcome=found.outcome, message=message)
        if found.outcome == "fail":
            self.runs[-1] = self.runs[-1].model_copy(update={"status": "wrong", "message": message})
        return found.outcome != "fail"

    def _one(self, case: Case, seed: int) -> bool:
        """One case under one seed; returns False when the rest would tell nothing new."""
        if self._too_large(case):
            return True
        first = not self.runs
        seen = self._seen(case, seed, first, 3 if first else 1)
        run, results, inputs, model = seen.run, seen.results, seen.inputs, seen.model
        if run.status == "pass":
            run = self._guards(
                case, seed, run, results, seen.changed, seen.views, seen.expected
            )  # fmt: skip
            self.pool.add(results[0]["output"], seen.expected, inputs, model)
        if run.status == "wrong":
            run = self._known_mistake(run, results[0], model, inputs)
        self._history.last = results[0]["output"]
        run = self._history.explained(
            run, inputs, [want.truth for _, want in seen.expected],
            [[leaf for _, leaf in flatten(result["output"])] for result in results],
            lambda: self.subject.call(inputs, seed, False, 2),
        )  # fmt: skip
        self.runs.append(run)
        self.notes += [note for note in model.notes if note not in self.notes]
        return run.status == "pass"

    def _seen(self, case: Case, seed: int, first: bool, repeats: int) -> _Seen:
        """Reference and candidate on one case under one seed, and the judgement of the values."""
        inputs = self._inputs(case, seed)
        model = self._prepared(case, self.plan.seeds[0])
        # The reference goes first: where it does not run, the candidate is not to blame.
        value, changed, views = self._guarded(case, lambda: model.run(inputs, seed))
        self.at = (case.name, seed)
        self._construct(case)
        results = self.subject.call(inputs, seed, True, repeats)
        expected = expect(model, inputs, seed, value, 1, first)
        run = self._judge(case, seed, results[0], expected)
        if any(output.figures is not None for output in run.outputs if not output.passed):
            # One perturbation is one draw, and can by chance be far too kind to a row that hangs on
            # few numbers. Before a candidate is called wrong, the response is measured properly.
            expected = expect(model, inputs, seed, value, DRAWS, first)
            run = self._judge(case, seed, results[0], expected)
        return _Seen(run, results, inputs, model, expected, changed, views)

    def _too_large(self, case: Case) -> bool:
        """Whether the case's inputs exceed the limit; then it is listed as left out."""
        limit = self.plan.max_bytes
        if limit is None:
            return False
        try:
            # On the meta device tensors have a size and no memory.
            with torch.device("meta"):
                inputs = self.reference.inputs(case)
        except (RuntimeError, NotImplementedError):
            inputs = self._inputs(case, self.plan.seeds[0])
        leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        size = sum(t.numel() * t.element_size() for t in leaves)
        if size > limit:
            name, text = f"case {case.name}", f"inputs of {size} bytes exceed the limit of {limit}"
            self.checks[name] = Check(name=name, outcome="skip", message=text)
        return size > limit

    def _inputs(self, case: Case, seed: int) -> list[Any]:
        torch.manual_seed(seed)
        return self._guarded(case, lambda: self.reference.inputs(case))  # type: ignore[no-any-return]

    def _prepared(self, case: Case, seed: int) -> ReferenceModel:
        args, kwargs = self._guarded(case, lambda: self.reference.init_args(case))
        key = repr((args, kwargs))
        if self._model is None or key != self._key:
            self._model = self._guarded(
                case,
                lambda: ReferenceModel(
                    self.reference.module.Model, args, kwargs, seed, self.plan.device
                ),
            )
            self._key = key
            self._constructed = False
        assert self._model is not None
        return self._model

    def _construct(self, case: Case) -> None:
        """Make the candidate for the present reference model, once."""
        if not self._constructed:
            assert self._model is not None
            args, kwargs = self.reference.init_args(case)
            self.subject.construct(args, kwargs, self.plan.seeds[0], self._model.state())
            self._constructed = True

    def _guarded(self, case: Case, run: Callable[[], Any]) -> Any:
        """Errors of the reference are the problem's fault, not the candidate's."""
        try:
            return run()
        except ProblemError:
            raise
        except Exception as error:
            text = str(error).splitlines()[0] if str(error) else ""
            raise ProblemError(
                f"the reference of {self.reference.problem.name} fails on case "
                f"{case.name!r}: {type(error).__name__}: {text}"
            ) from error

    def _judge(
        self, case: Case, seed: int, result: Any, expected: list[tuple[str, Expected]]
    ) -> Run:
        problem = self.reference.problem
        got = flatten(result["output"])
        if [name for name, _ in got] != [name for name, _ in expected]:
            text = f"returns {_names(got)}, expected {_names(expected)}"
            return Run(case=case.name, seed=seed, status="wrong", message=text)
        outputs = [
            compare(name, leaf, want, problem.atol, problem.rtol)
            for (name, leaf), (_, want) in zip(got, expected, strict=True)
        ]
        bad = next((o for o in outputs if not o.passed), None)
        return Run(
            case=case.name,
            seed=seed,
            status="pass" if bad is None else "wrong",
            outputs=tuple(outputs),
            message="" if bad is None else f"case {case.name}: {bad.message}",
        )

    def _guards(
        self, case: Case, seed: int, run: Run, results: Any, changed: list[int],
        may_view: bool, expected: list[tuple[str, Expected]],
    ) -> Run:  # fmt: skip
        """The properties that values alone do not show."""
        result = results[0]
        mutated = [i for i in result["mutated"] if i not in changed]
        run = self._guard(
            run, "inputs unchanged", not mutated,
            f"case {case.name}: input {mutated} was changed by the call",
        )  # fmt: skip
        # Where the reference itself answers with a view (a reshape, an in-place op), so may others.
        views = [] if may_view else result["views_input"]
        run = self._guard(
            run, "outputs are new", not views and not result["reused"],
            f"case {case.name}: an output shares memory with "
            + ("an input" if views else "the output of an earlier call"),
        )  # fmt: skip
        kind = self.plan.device.split(":")[0]
        away = sorted({d for d in result["devices"] if d.split(":")[0] != kind})
        run = self._guard(
            run, "outputs on the inputs' device", not away,
            f"case {case.name}: an output is on {', '.join(away)}, the inputs are on {kind}",
        )  # fmt: skip
        if len(results) > 2:
            run = self._repeats(case, seed, run, results, expected)
        return run

    def _guard(self, run: Run, name: str, passed: bool, message: str) -> Run:
        if name not in self.checks or not passed:
            outcome = "pass" if passed else "fail"
            self.checks[name] = Check(name=name, outcome=outcome, message="" if passed else message)  # type: ignore[arg-type]
        if passed or run.status != "pass":
            return run
        return run.model_copy(update={"status": "wrong", "message": message})

    def _repeats(
        self, case: Case, seed: int, run: Run, results: Any, expected: list[tuple[str, Expected]]
    ) -> Run:
        """Runs 1 and 2 had ordinary memory: they must be right too, and should be equal bitwise."""
        plain = self._judge(case, seed, results[1], expected)
        if plain.status != "pass":
            return self._guard(
                run, "right without filled memory", False,
                f"{plain.message} (only when new memory is not filled with NaN: "
                "the result depends on memory that the kernel did not write)",
            )  # fmt: skip
        one, two = flatten(results[1]["output"]), flatten(results[2]["output"])
        same = all(_bitwise(a, b) for (_, a), (_, b) in zip(one, two, strict=True))
        self.checks["repeatable"] = Check(
            name="repeatable",
            outcome="pass" if same else "note",
            message="" if same else "two runs on the same inputs differ bitwise",
        )
        return run

    def _known_mistake(
        self, run: Run, result: Any, model: ReferenceModel, inputs: list[Any]
    ) -> Run:
        """Add the problem's own words when the output is what a known slip would give."""
        got = [leaf for _, leaf in flatten(result["output"])]
        for words, slip in getattr(self.reference.module, "MISTAKES", {}).items():
            with torch.no_grad():
                other = [leaf for _, leaf in flatten(slip(*to_device(inputs, model.device)))]
            if len(got) == len(other) and all(_near(a, b) for a, b in zip(got, other, strict=True)):
                return run.model_copy(update={"message": f"{run.message}. It looks as if {words}"})
        return run

    def smallest(self, failed: Run) -> Case | None:
        """The smallest case that fails by its values as ``failed`` did, if any is smaller."""

        def fails(case: Case) -> bool:
            return self._seen(case, failed.seed, False, 1).run.status != "pass"

        return smallest.after(failed, self.runs, self.reference, fails)

    def fingerprint(self) -> str:
        """Of the last output."""
        return fingerprint(flatten(self._history.last))

    def skipped(self) -> str:
        return "; ".join(c.message for c in self.checks.values() if c.outcome == "skip")


def _names(leaves: list[tuple[str, Any]]) -> str:
    return ", ".join(name for name, _ in leaves) or "nothing"


def _bitwise(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b)
    return identical(a, b)


def _near(got: Any, other: Any) -> bool:
    """Whether two outputs agree to a thousandth."""
    if not isinstance(got, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if got.shape != other.shape:
        return False
    a, b = got.to(torch.float64), other.detach().cpu().to(torch.float64)
    return float((a - b).norm()) <= 1e-3 * float(b.norm())
