"""The course of a check: cases, seeds, guards, and the verdict over all of them."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._pytree import tree_leaves

from kernelproof.check import budget
from kernelproof.check.compare import Expected, compare
from kernelproof.check.matrix import Matrix
from kernelproof.check.reference import ReferenceModel, flatten, to_device, working_name
from kernelproof.errors import CandidateError, ProblemError
from kernelproof.types import Case, Check, Evidence, Level, Progress, Run, Verdict, silent

if TYPE_CHECKING:
    from kernelproof.problem import Reference


# Perturbations over which the response of a case is averaged before a candidate is called wrong.
_DRAWS = 16


class Subject(Protocol):
    """The candidate, wherever it runs."""

    def construct(
        self, args: list[Any], kwargs: dict[str, Any], seed: int, state: dict[str, torch.Tensor]
    ) -> str | None:
        """Make a ModelNew with these arguments and weights ready for `call`; returns how the
        weights matched, where that is known."""

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        """Run it; one dict a run with ``output``, ``mutated``, ``overrun``, ``views_input``,
        ``reused`` and ``devices``."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run.

    ``seeds``: for the first case; the others take the first ``other_seeds`` of them. ``cases``:
    names to run, all when empty. ``max_bytes``: cases with larger inputs are left out, and that is
    said. ``level``: "quick" runs the declared cases only, "default" adds families and layouts of
    the first case, "thorough" those of every case and other sizes. ``extra_seconds``: no new
    variant of a case after this time.
    """

    seeds: tuple[int, ...]
    device: str = "cpu"
    evidence: Evidence = "cpu"
    other_seeds: int = 2
    cases: tuple[str, ...] = ()
    max_bytes: int | None = None
    level: Level = "quick"
    extra_seconds: float = math.inf


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
    runs = (*course.runs, *course.extra)
    failed = next((run for run in runs if run.status != "pass"), None)
    if status == "pass" and failed is not None:
        status, message = failed.status, failed.message
    if status == "pass" and not course.runs:
        status, message = "unsupported", "no case could be run: " + course.skipped()
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
    )


class _Course(Matrix):
    def __init__(
        self, reference: Reference, subject: Subject, plan: Plan, progress: Progress
    ) -> None:
        self.reference = reference
        self.subject = subject
        self.plan = plan
        self.progress = progress
        self.runs: list[Run] = []
        # Beyond the declared cases: not part of the compat verdict, which others publish too.
        self.extra: list[Run] = []
        self.notes: list[str] = []
        self.checks: dict[str, Check] = {}
        self._key: Any = None
        self._constructed = False
        self._model: ReferenceModel | None = None

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
            for seed in seeds:
                if not self._one(case, seed):
                    return
        beyond = {"quick": 0, "default": 1, "thorough": len(chosen)}[self.plan.level]
        for case in chosen[:beyond]:
            if not self._too_large(case) and not self._variants(case, self.plan.seeds[0]):
                return
        if self.plan.level == "thorough" and not self.plan.cases:
            self._other_sizes()

    def _one(self, case: Case, seed: int) -> bool:
        """One case under one seed; returns False when the rest would tell nothing new."""
        if self._too_large(case):
            return True
        inputs = self._inputs(case, seed)
        model = self._prepared(case, self.plan.seeds[0])
        # The reference goes first: where it does not run, the candidate is not to blame.
        value, changed, views = self._guarded(case, lambda: model.run(inputs, seed))
        self._construct(case)
        first = not self.runs
        results = self.subject.call(inputs, seed, True, 3 if first else 1)
        expected = self._expected(model, inputs, seed, value, 1, first)
        run = self._judge(case, seed, results[0], expected)
        if any(output.figures is not None for output in run.outputs if not output.passed):
            # One perturbation is one draw, and can by chance be far too kind to a row that hangs on
            # few numbers. Before a candidate is called wrong, the response is measured properly.
            expected = self._expected(model, inputs, seed, value, _DRAWS, first)
            run = self._judge(case, seed, results[0], expected)
        if run.status == "pass":
            run = self._guards(case, seed, run, results, changed, views, expected)
        if run.status == "wrong":
            run = self._known_mistake(run, results[0], model, inputs)
        self.runs.append(run)
        self.notes += [note for note in model.notes if note not in self.notes]
        return run.status == "pass"

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
            self._reconstruct(case)
            self._constructed = True

    def _reconstruct(self, case: Case) -> str:
        """Make the candidate with the reference model's present weights; how they matched."""
        assert self._model is not None
        args, kwargs = self.reference.init_args(case)
        how = self.subject.construct(args, kwargs, self.plan.seeds[0], self._model.state())
        return how or ""

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

    def _expected(
        self,
        model: ReferenceModel,
        inputs: list[Any],
        seed: int,
        value: Any,
        draws: int,
        first: bool,
        by_row: bool = False,
    ) -> list[tuple[str, Expected]]:
        """What each output should be, with the response averaged over ``draws`` perturbations."""
        truth = flatten(model.truth(inputs, seed))
        moved = [flatten(model.perturbed(inputs, seed, draw, by_row)) for draw in range(draws)]
        rounded = {
            name: flatten(model.in_precision(inputs, seed, name))
            for name in (("tf32", "bf16", "fp16") if first else ())
        }
        found = []
        for i, (name, leaf) in enumerate(flatten(value)):
            exact = truth[i][1]
            floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            levels = {}
            if floating and first:
                levels = {p: _rms(r[i][1] - exact) for p, r in rounded.items()}
                if leaf.dtype != torch.float32:
                    levels = {}
                levels[working_name(leaf.dtype)] = _rms(leaf.to(torch.float64) - exact)
            response = None
            if isinstance(exact, torch.Tensor) and _inexact(exact):
                response = _mean_response([draw[i][1] - exact for draw in moved])
            found.append((name, Expected(leaf, exact, response, levels)))
        return found

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
        beyond = result.get("overrun", [])
        run = self._guard(
            run, "no write outside inputs", not beyond,
            f"case {case.name}: the call wrote outside "
            + ", ".join(f"input {i} ({words})" for i, words in beyond),
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

    def skipped(self) -> str:
        return "; ".join(c.message for c in self.checks.values() if c.outcome == "skip")


def _names(leaves: list[tuple[str, Any]]) -> str:
    return ", ".join(name for name, _ in leaves) or "nothing"


def _mean_response(changes: list[torch.Tensor]) -> torch.Tensor:
    """Root mean square over draws, element by element; complex parts apart. A change that is no
    number (the perturbation crossed an overflow) counts as none."""
    parts = [torch.view_as_real(c) if c.is_complex() else c for c in changes]
    finite = [torch.nan_to_num(p, nan=0.0, posinf=0.0, neginf=0.0) for p in parts]
    mean = torch.stack([p.square() for p in finite]).mean(dim=0).sqrt()
    return torch.view_as_complex(mean) if changes[0].is_complex() else mean


def _inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _rms(x: torch.Tensor) -> float:
    finite = torch.where(torch.isfinite(x), x, 0.0)
    return float(finite.square().mean().sqrt()) if x.numel() else 0.0


def _bitwise(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b)
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _near(got: Any, other: Any) -> bool:
    """Whether two outputs agree to a thousandth."""
    if not isinstance(got, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if got.shape != other.shape:
        return False
    a, b = got.to(torch.float64), other.detach().cpu().to(torch.float64)
    return float((a - b).norm()) <= 1e-3 * float(b.norm())
