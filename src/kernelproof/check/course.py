"""The course of a check: cases, seeds, guards, and what each call showed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from kernelproof.check import models, smallest
from kernelproof.check.compare import Expected, compare
from kernelproof.check.expected import DRAWS, STAGES, expect, refined
from kernelproof.check.explain.history import History, fingerprint
from kernelproof.check.guards import Guards
from kernelproof.check.matrix import Matrix, Seen, doubtful, off_by_values
from kernelproof.check.plan import Plan, Subject
from kernelproof.check.pooling import Pool
from kernelproof.check.reference import ReferenceModel, guarded
from kernelproof.check.ties import off_by_integers, with_ties
from kernelproof.check.values import flatten, to_device
from kernelproof.errors import CandidateError, ProblemError, no_case
from kernelproof.spare import spare_memory
from kernelproof.timeline import span
from kernelproof.types import Call, Case, Check, Progress, Run

if TYPE_CHECKING:
    from kernelproof.problem import Reference

# More seeds for a case whose errors have a structure that the plan's few do not make certain.
_MORE_SEEDS = 6


class Course(Matrix):
    """Reference and candidate side by side, case by case; errors of the candidate are raised."""

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
        self.guards = Guards(plan.device)
        self.checks = self.guards.checks
        self.pool = Pool()
        self._key: Any = None
        self._constructed = False
        self._model: ReferenceModel | None = None
        self._history = History(always_filled=plan.evidence == "emulated")
        self.at: Call | None = None

    def run(self) -> None:
        problem = self.reference.problem
        unknown = set(self.plan.cases) - {case.name for case in problem.cases}
        if unknown:
            names = [case.name for case in problem.cases]
            raise ProblemError(f"{problem.name} {no_case(min(unknown), names)}")
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
        beyond = {"quick": 0, "default": 1, "thorough": len(chosen)}[self.plan.level]
        for case in chosen[:beyond]:
            if not self._too_large(case) and not self._variants(case, self.plan.seeds[0]):
                return
        if self.plan.level == "thorough" and not self.plan.cases and not self._other_sizes():
            return
        if self.plan.large:
            self._large()

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
        call = Call(case=case.name, seed=seed)
        # Once in each case in ordinary memory too; twice in the first, to be compared. The emulator
        # is deterministic: a repetition would tell nothing.
        new = all(run.case != case.name for run in self.runs)
        repeats = 1 if self.plan.evidence == "emulated" else 3 if first else 2 if new else 1
        seen = self._seen(case, call, first, repeats)
        run = self._at_home(self._explained(seen, pooled=True), seen)
        self.runs.append(run)
        return run.status == "pass"

    @span("compat of the problem")
    def _at_home(self, run: Run, seen: Seen) -> Run:
        """The run with the compat verdict of the problem's own `COMPAT`, where it has one."""
        accepts = getattr(self.reference.module, "COMPAT", None)
        if accepts is None or not run.outputs:
            return run
        device = self.plan.device
        given, got = to_device(seen.inputs, device), to_device(seen.results[0]["output"], device)
        try:
            with torch.no_grad():
                refused = str(accepts(given, got))
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
        if refused:
            self.notes.append(f"compat, case {run.name}: {refused.splitlines()[0][:200]}")
        outputs = tuple(o.model_copy(update={"compat": not refused}) for o in run.outputs)
        return run.model_copy(update={"outputs": outputs})

    def _explained(self, seen: Seen, pooled: bool) -> Run:
        """The run after guards, with what is known about a failure; ``pooled``: it also goes into
        the structure of the case's errors."""
        run, results, inputs, model = seen.run, seen.results, seen.inputs, seen.model
        if run.status == "pass":
            with span("guards"):
                run = self.guards.apply(
                    run.name, run, results, seen.changed, seen.views, model.overlapping,
                    model.draws,
                    lambda result: self._judge(run, result, seen.expected),
                )  # fmt: skip
        else:
            run = self.guards.launched(run.name, run, results[0])
        if run.status == "pass" and pooled:
            self.pool.add(results[0]["output"], seen.expected, inputs, model)
        if run.status == "wrong":
            run = self._known_mistake(run, results[0], model, inputs)
        self._history.last = results[0]["output"]
        if results[0].get("refused") and run.status != "pass":
            return run  # nothing has run whose values could be explained
        run = self._history.explained(
            run, inputs, [want.truth for _, want in seen.expected],
            [[leaf for _, leaf in flatten(result["output"])] for result in results],
            lambda: self.subject.call(inputs, run.seed, False, 2),
        )  # fmt: skip
        self.notes += [note for note in model.notes if note not in self.notes]
        return run

    def _seen(self, case: Case, call: Call, first: bool, repeats: int) -> Seen:
        """Reference and candidate on one call, and the judgement of the values."""
        seed = call.seed
        inputs = self._inputs(case, seed)
        model = self._prepared(case, self.plan.seeds[0])
        # The candidate goes first: while it runs, what it should answer is in no process's memory.
        model.forget()
        with span("memory given back"):
            spare_memory(self.plan.device)
        try:
            self._construct(case)
            results = self.subject.call(inputs, seed, True, repeats)
        except CandidateError:
            # Where the reference does not run either, the candidate is not to blame.
            self._guarded(case, lambda: model.run(inputs, seed))
            self.at = call
            raise
        value, changed, views = self._guarded(case, lambda: model.run(inputs, seed))
        self.at = call
        expected = expect(model, inputs, seed, value, STAGES[0], first)
        run, expected = self._settled(call, results[0], expected, model, inputs)
        return Seen(run, results, inputs, model, expected, changed, views)

    def _settled(
        self, call: Call, result: Any, expected: list[tuple[str, Expected]],
        model: ReferenceModel, inputs: list[Any], by_row: bool = False,
    ) -> tuple[Run, list[tuple[str, Expected]]]:  # fmt: skip
        """The judgement of the values, with the allowance measured as well as it takes; and what
        it was judged by."""
        run = self._judge(call, result, expected)
        for draws in STAGES[1:]:
            if doubtful(run) if draws < DRAWS else off_by_values(run):
                expected = refined(expected, model, inputs, call.seed, draws, by_row)
                run = self._judge(call, result, expected)
        if off_by_integers(run):
            expected = with_ties(expected, result["output"], model, inputs, call.seed, by_row)
            run = self._judge(call, result, expected)
            if run.status == "pass":
                count = sum(int(e.ties.sum()) for _, e in expected if e.ties is not None)
                text = f"case {call.name}: {count} integer(s) differ, where rounding decides"
                self.checks.setdefault("ties", Check(name="ties", outcome="note", message=text))
        return run, expected

    def _too_large(self, case: Case) -> bool:
        """Whether the case's inputs exceed the limit; then it is listed as left out."""
        limit = self.plan.max_bytes
        if limit is None:
            return False
        size = self._guarded(case, lambda: self.reference.input_bytes(case))
        if size > limit:
            name, text = f"case {case.name}", f"inputs of {size} bytes exceed the limit of {limit}"
            self.checks[name] = Check(name=name, outcome="skip", message=text)
        return bool(size > limit)

    @span("draw inputs")
    def _inputs(self, case: Case, seed: int) -> list[Any]:
        return self._guarded(case, lambda: self.reference.drawn(case, seed))  # type: ignore[no-any-return]

    def _prepared(self, case: Case, seed: int) -> ReferenceModel:
        args, kwargs = self._guarded(case, lambda: self.reference.init_args(case))
        factory, training = self.reference.module.Model, self.reference.problem.training
        device = self.plan.device
        key = factory, repr((args, kwargs)), seed, device
        if self._model is None or key != self._key:
            self._model = models.kept(key) or self._guarded(
                case, lambda: ReferenceModel(factory, args, kwargs, seed, device, training)
            )
            self._key = key
            self._constructed = False
        assert self._model is not None
        models.keep(key, self._model)
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
        return guarded(self.reference.problem.name, case.name, run)

    @span("judge the values")
    def _judge(self, call: Call, result: Any, expected: list[tuple[str, Expected]]) -> Run:
        problem = self.reference.problem
        got = flatten(result["output"])
        if [name for name, _ in got] != [name for name, _ in expected]:
            text = f"returns {_names(got)}, expected {_names(expected)}"
            return Run(
                case=call.case, seed=call.seed, variant=call.variant, status="wrong", message=text
            )  # fmt: skip
        outputs = [
            compare(name, leaf, want, problem.atol, problem.rtol)
            for (name, leaf), (_, want) in zip(got, expected, strict=True)
        ]
        bad = next((o for o in outputs if not o.passed), None)
        return Run(
            case=call.case,
            seed=call.seed,
            variant=call.variant,
            status="pass" if bad is None else "wrong",
            outputs=tuple(outputs),
            message="" if bad is None else f"case {call.name}: {bad.message}",
        )

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
            call = Call(case=case.name, seed=failed.seed)
            return self._seen(case, call, False, 1).run.status != "pass"

        return smallest.after(failed, self.runs, self.reference, fails)

    def fingerprint(self) -> str:
        """Of the last output."""
        return fingerprint(flatten(self._history.last))

    def skipped(self) -> str:
        return "; ".join(c.message for c in self.checks.values() if c.outcome == "skip")


def _names(leaves: list[tuple[str, Any]]) -> str:
    return ", ".join(name for name, _ in leaves) or "nothing"


def _near(got: Any, other: Any) -> bool:
    """Whether two outputs agree to a thousandth."""
    if not isinstance(got, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if got.shape != other.shape:
        return False
    a, b = got.to(torch.float64), other.detach().cpu().to(torch.float64)
    return float((a - b).norm()) <= 1e-3 * float(b.norm())
