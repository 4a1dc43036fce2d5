"""The part of a check beyond the declared cases: value families and layouts of a case.

A variant runs only where the reference itself runs and stays fit to judge by (see `families`). It
is described by `Run.variant` and named like ``founding [large, offset]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from kernelproof.check import budget, families, layouts, spreading
from kernelproof.check.expected import expect
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.values import flatten
from kernelproof.errors import CandidateError, ProblemError
from kernelproof.types import Call, Case, Check, Progress, Run, Variant

if TYPE_CHECKING:
    from kernelproof.check.compare import Expected
    from kernelproof.check.plan import Plan, Subject
    from kernelproof.problem import Reference

# Families in which rows hold zeros or equal numbers, or little beside what was added up: there the
# response is taken to the unit of the row, and the terms of sums count as equal.
_BY_ROW = ("zeros", "sparse", "cancellation", "constant rows")
# Perturbations over which a response is averaged; one draw can be far too kind, and a variant is
# judged by one seed only.
_DRAWS = 1
# Ordinary numbers that stand for those which are not finite, how often.
_ORDINARY = 2
_PROPAGATE = "NaN and infinity propagate"


@dataclasses.dataclass(frozen=True)
class Seen:
    """One call: what came back, what should have, and the judgement of the values."""

    run: Run
    results: Any
    inputs: list[Any]
    model: ReferenceModel
    expected: list[tuple[str, Expected]]
    changed: list[int]
    views: bool


def off_by_values(run: Run) -> bool:
    """Whether a floating output of ``run`` is too far off."""
    return any(output.figures is not None for output in run.outputs if not output.passed)


def doubtful(run: Run) -> bool:
    """Whether a floating output of ``run`` is too far off, or nearly."""
    return off_by_values(run) or not all(
        budget.clear(output.ratio_rows, output.ratio_all) for output in run.outputs
    )


@dataclasses.dataclass
class _Base:
    """A family's inputs with what each output should be."""

    variant: Variant
    inputs: list[Any]
    expected: list[tuple[str, Expected]]
    changed: list[int]
    views: bool


class Matrix:
    """Adds variants to the course of a check (`course.Course`)."""

    reference: Reference
    plan: Plan
    subject: Subject
    runs: list[Run]
    extra: list[Run]
    notes: list[str]
    checks: dict[str, Check]
    _constructed: bool
    _model: ReferenceModel | None

    def _variants(self, case: Case, seed: int) -> bool:
        """Families, layouts and at "thorough" each with each; False after a failure."""
        thorough = self.plan.level == "thorough"
        end = time.perf_counter() + self.plan.extra_seconds
        model = self._prepared(case, self.plan.seeds[0])
        inputs = self._inputs(case, seed)
        ties = self._bears_ties(model, inputs, seed)
        left_out, unfit = [], []
        for family in ("", *families.names(ties)):
            if time.perf_counter() > end:
                left_out.append(family)
                continue
            with self._weighted(family, case, model, seed) as ready:
                if not ready:
                    continue
                versions = self._versions(family, inputs, seed)
                base = self._base(family, versions, model, seed)
                if base is None:
                    unfit += [family] if versions else []
                    continue
                if family and not self._variant(case, seed, model, base, ""):
                    return False
                for layout in layouts.LAYOUTS if thorough or not family else ():
                    if time.perf_counter() > end:
                        left_out.append(f"{family} {layout}".strip())
                    elif not self._variant(case, seed, model, base, layout):
                        return False
        self._note_left_out(case, left_out, unfit)
        return True

    @contextlib.contextmanager
    def _weighted(
        self, family: str, case: Case, model: ReferenceModel, seed: int
    ) -> Iterator[bool]:
        """Inside, reference and candidate have the weights of ``family``: for all but "weights" the
        case's own. Yields whether they have."""
        if family != families.WEIGHTS:
            self._construct(case)
            yield True
            return
        state = families.weights(model.state(), seed)
        if state is None:
            yield False
            return
        with model.holding(state):
            self._constructed = False
            how = self._reconstruct(case)
            # Such a candidate draws its own weights, equal to the reference's by the seed alone.
            ready = not how.startswith("same seed only")
            if not ready:
                text = f"weights as initialised only: the candidate cannot take others ({how})"
                self.notes.append(text)
            yield ready

    def _bears_ties(self, model: ReferenceModel, inputs: list[Any], seed: int) -> bool:
        leaves = [leaf for _, leaf in flatten(model.run(inputs, seed)[0])]
        return all(not isinstance(x, torch.Tensor) or x.is_floating_point() for x in leaves)

    def _versions(self, family: str, inputs: list[Any], seed: int) -> list[list[Any]]:
        if family in ("", families.WEIGHTS):
            return [inputs]
        return list(families.varied(family, inputs, seed))

    def _base(
        self, family: str, versions: list[list[Any]], model: ReferenceModel, seed: int
    ) -> _Base | None:
        """The first of ``versions`` by which the reference can judge."""
        for number, version in enumerate(versions):
            try:
                value, changed, views = model.run(version, seed)
                leaves = [leaf for _, leaf in flatten(value)]
                if family and not families.meaningful(family, leaves):
                    continue
                expected = self._expect(family, model, version, seed, value, _DRAWS)
            except (ProblemError, RuntimeError, ValueError, IndexError, AssertionError):
                # The reference refuses these values: they are none that a kernel must take.
                continue
            if family and any(
                families.ill_conditioned(e.truth, e.value, e.response) for _, e in expected
            ):
                continue
            variant = Variant(family=family, version=number)
            return _Base(variant, version, expected, changed, views)
        return None

    def _expect(
        self, family: str, model: ReferenceModel, inputs: list[Any], seed: int, value: Any,
        draws: int,
    ) -> list[tuple[str, Expected]]:  # fmt: skip
        by_row = family in _BY_ROW
        return expect(model, inputs, seed, value, draws, False, by_row, sums=False)

    def _variant(
        self, case: Case, seed: int, model: ReferenceModel, base: _Base, layout: str
    ) -> bool:
        """Judge the candidate on one variant; False when it fails."""
        inputs: list[Any] | None = base.inputs
        if layout:
            inputs = layouts.relaid(layout, base.inputs)
            if inputs is None or (base.variant.family and not layouts.same_values(layout)):
                return True
            try:
                value, changed, views = model.run(inputs, seed)
                variant = base.variant.model_copy(update={"layout": layout})
                base = _Base(variant, inputs, base.expected, changed, views)
                if not layouts.same_values(layout):
                    base.expected = self._expect(variant.family, model, inputs, seed, value, _DRAWS)
            except (ProblemError, RuntimeError, ValueError):
                return True  # the reference itself does not take this layout
        call = Call(case=case.name, seed=seed, variant=base.variant)
        self.progress(f"check {call.name}", len(self.extra), len(self.extra) + 1)
        self.at = call
        try:
            results = self.subject.call(base.inputs, seed, True, 1)
        except CandidateError as error:
            if error.clean and (layout or base.variant.family == families.NAN):
                self._refused(layout or base.variant.family, error)
                return True
            error.message = f"case {call.name}: {error.message}"
            raise
        run = self._judge_variant(call, model, base, results)
        if run.status != "pass" and layout and self._right_when_contiguous(call, base):
            words = f"{run.message}. With contiguous inputs the same values come out right"
            run = run.model_copy(update={"message": words})
        self.extra.append(run)
        return run.status == "pass"

    def _judge_variant(self, call: Call, model: ReferenceModel, base: _Base, results: Any) -> Run:
        if base.variant.family == families.NAN:
            results = [self._excused(results[0], base)]
        by_row = base.variant.family in _BY_ROW
        run, base.expected = self._settled(
            call, results[0], base.expected, model, base.inputs, by_row
        )
        if run.status != "pass" and base.variant.family == families.NAN:
            run = self._cancelling(call, model, base, results[0]) or run
        seen = Seen(run, results, base.inputs, model, base.expected, base.changed, base.views)
        return self._explained(seen, pooled=False)

    def _right_when_contiguous(self, call: Call, base: _Base) -> bool:
        try:
            results = self.subject.call(layouts.contiguous(base.inputs), call.seed, True, 1)
        except CandidateError:
            return False
        return bool(self._judge(call, results[0], base.expected).status == "pass")

    def _excused(self, result: Any, base: _Base) -> Any:
        """The result with its places filled at which the reference gives no number."""
        got = flatten(result["output"])
        if [name for name, _ in got] != [name for name, _ in base.expected]:
            return result
        leaves, lost = [], 0
        for (_, leaf), (_, want) in zip(got, base.expected, strict=True):
            same, count = families.excused(leaf, want.value)
            leaves.append(same)
            lost += count
        name = _PROPAGATE
        if name not in self.checks or lost:
            text = f"{lost} outputs are finite where the reference gives NaN or infinity"
            self.checks[name] = Check(
                name=name, outcome="note" if lost else "pass", message=text if lost else ""
            )
        return {**result, "output": _rebuilt(result["output"], iter(leaves))}

    def _cancelling(
        self, call: Call, model: ReferenceModel, base: _Base, result: Any
    ) -> Run | None:
        """The run of a candidate that is right but for NaN and infinity which have spread, by
        numbers that it adds and takes away again; None for any other."""
        got = [leaf for _, leaf in flatten(result["output"])]
        if len(got) != len(base.expected):
            return None
        values = [want.value for _, want in base.expected]
        spread = [spreading.places(*pair) for pair in zip(got, values, strict=True)]
        leaves = iter([spreading.filled(*pair) for pair in zip(got, values, strict=True)])
        filled = {**result, "output": _rebuilt(result["output"], leaves)}
        run, _ = self._settled(call, filled, base.expected, model, base.inputs)
        if run.status != "pass" or all(where is None for where in spread):
            return None
        for attempt in range(_ORDINARY):
            inputs = spreading.finite(base.inputs, call.seed + attempt)
            value = model.run(inputs, call.seed)[0]
            expected = self._expect("", model, inputs, call.seed, value, _DRAWS)
            ordinary = self.subject.call(inputs, call.seed, True, 2)
            if self._settled(call, ordinary[0], expected, model, inputs)[0].status != "pass":
                return None
        inputs = spreading.finite(base.inputs, call.seed, spreading.LARGE)
        seen = [*ordinary, *self.subject.call(inputs, call.seed, True, 1)]
        leaves_of_each = [[leaf for _, leaf in flatten(run["output"])] for run in seen]
        if not spreading.felt(spread, *leaves_of_each):
            return None
        count = sum(int(where.sum()) for where in spread if where is not None)
        text = f"{count} outputs that hang on neither are none: what cancels there is not finite"
        self.checks[_PROPAGATE] = Check(name=_PROPAGATE, outcome="note", message=text)
        return run

    def _refused(self, what: str, error: CandidateError) -> None:
        name = f"takes {what} inputs"
        first = error.message.splitlines()[0] if error.message else type(error).__name__
        self.checks[name] = Check(name=name, outcome="note", message=f"it refuses them: {first}")

    def _other_sizes(self) -> bool:
        """One run at each of the sizes that a problem without declared cases can also have; False
        after a failure."""
        for sizes, reference in self.reference.other_sizes():
            try:
                if not self._elsewhere(reference, reference.problem.cases[0], sizes):
                    return False
            except ProblemError:
                continue  # the reference does not run at this size
        return True

    def _large(self) -> None:
        """One run of each case past 2^31 elements."""
        found = self.reference.large()
        if not found:
            text = "no case past 2^31 elements: LARGE declares none and no size constant gives one"
            self.checks["large"] = Check(name="large", outcome="skip", message=text)
        for case, sizes, reference in found:
            if not self._elsewhere(reference, case, sizes):
                return

    def _elsewhere(self, reference: Reference, case: Case, sizes: dict[str, Any]) -> bool:
        """One run of ``case`` of ``reference``, which differs in ``sizes``; False for a failure."""
        if reference is not self.reference:
            self.reference, self._model = reference, None
        call = Call(case=case.name, seed=self.plan.seeds[0], variant=Variant(sizes=sizes))
        self.progress(f"check {call.name}", len(self.extra), len(self.extra) + 1)
        run = self._explained(self._seen(case, call, False, 1), pooled=False)
        self.extra.append(run)
        return run.status == "pass"

    def _note_left_out(self, case: Case, left_out: list[str], unfit: list[str]) -> None:
        limit = self.plan.extra_seconds
        for names, why in (
            (left_out, f"the time for variants ({limit:g} s) was over"),
            (unfit, "there the reference refuses, is not finite, or has few digits"),
        ):
            if names:
                self.notes.append(f"case {case.name} without {', '.join(names)}: {why}")

    if TYPE_CHECKING:
        # What `course.Course` provides.
        progress: Progress
        at: Call | None

        def _seen(self, case: Case, call: Call, first: bool, repeats: int) -> Seen: ...
        def _explained(self, seen: Seen, pooled: bool) -> Run: ...
        def _inputs(self, case: Case, seed: int) -> list[Any]: ...
        def _prepared(self, case: Case, seed: int) -> ReferenceModel: ...
        def _construct(self, case: Case) -> None: ...
        def _reconstruct(self, case: Case) -> str: ...
        def _judge(self, call: Call, result: Any, expected: list[tuple[str, Expected]]) -> Run: ...
        def _settled(
            self, call: Call, result: Any, expected: list[tuple[str, Expected]],
            model: ReferenceModel, inputs: list[Any], by_row: bool = False,
        ) -> tuple[Run, list[tuple[str, Expected]]]: ...  # fmt: skip


def _rebuilt(value: Any, leaves: Iterator[Any]) -> Any:
    """``value`` with its leaves, in the order of `flatten`, replaced."""
    if isinstance(value, (list, tuple)):
        items = [_rebuilt(item, leaves) for item in value]
        # A named tuple takes its items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _rebuilt(item, leaves) for key, item in value.items()}
    return next(leaves)
