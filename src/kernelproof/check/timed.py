"""Judge outputs of calls that were timed, as the outputs of any other call are judged."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from kernelproof.check.course import Course
from kernelproof.check.plan import Plan
from kernelproof.check.values import flatten
from kernelproof.types import Call, Case, Check, Run, Status, silent

if TYPE_CHECKING:
    from kernelproof.problem import Reference

NAME = "timed outputs"
# Outputs judged in full: those farthest from the reference, and some by chance. All others are
# compared with the reference only to find these.
_FARTHEST = 3
_BY_CHANCE = 3


class Timed(Protocol):
    """An output of a call that was timed; see `timing.Pick`."""

    @property
    def seed(self) -> int: ...
    @property
    def clock(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def output(self) -> Any: ...
    @property
    def again(self) -> bool: ...


class Judgement:
    """``check`` is the outcome; ``status`` and ``call`` are set where an output is wrong."""

    def __init__(self, check: Check, status: Status = "pass", call: Call | None = None) -> None:
        self.check = check
        self.status = status
        self.call = call


def judge(
    reference: Reference, plan: Plan, case: Case, timed: Sequence[Timed],
    untimed: Callable[[list[Any], int], Any],
) -> Judgement:  # fmt: skip
    """The worst of ``timed``.

    An output that is wrong while calls on the same inputs are right when they are not timed makes
    a cheat; where those are wrong too, the candidate is wrong, as a race can make it.

    Args:
        untimed: calls on these inputs under a seed in a new process, which knows of no timing.
    """
    recorded = _Recorded()
    course = _Outputs(reference, recorded, plan, silent)
    fit, left_out = course.fit(case, timed)
    if not fit:
        text = left_out or "no output of a timed call was collected"
        return Judgement(Check(name=NAME, outcome="note", message=text))
    ranked = sorted(fit, key=lambda one: -course.distance(case, one))
    others = ranked[_FARTHEST:]
    chosen = ranked[:_FARTHEST] + random.SystemRandom().sample(others, min(_BY_CHANCE, len(others)))
    for one in chosen:
        recorded.output = one.output
        run = course.judged(case, one.seed)
        if run.status != "pass":
            return _wrong(course, recorded, untimed, case, one, run)
    text = f"{len(fit)} outputs of timed calls collected, {len(chosen)} judged in full"
    return Judgement(Check(name=NAME, outcome="pass", message=text))


def _wrong(
    course: _Outputs, recorded: _Recorded, untimed: Callable[[list[Any], int], Any], case: Case,
    one: Timed, run: Run,
) -> Judgement:  # fmt: skip
    results = untimed(course.inputs(case, one.seed), one.seed)
    right = 0
    for result in results:
        recorded.output = result["output"]
        right += course.judged(case, one.seed).status == "pass"
    where = f"timed call of round {one.number} ({one.clock} clock, seed {one.seed}): {run.message}"
    if right == len(results):
        text = f"{where}. The same inputs give a right answer in a process that is not timed"
        status: Status = "cheat"
    else:
        text = f"{where}. Not timed, {right} of {len(results)} calls on these inputs are right"
        status = "wrong"
    return Judgement(Check(name=NAME, outcome="fail", message=text), status, Call(
        case=case.name, seed=one.seed
    ))  # fmt: skip


class _Recorded:
    """Stands for a candidate whose output is there already."""

    def __init__(self) -> None:
        self.output: Any = None

    def construct(self, args: Any, kwargs: Any, seed: int, state: Any) -> None:
        return None

    def call(self, inputs: list[Any], seed: int, poison: bool, repeats: int) -> Any:
        return [{"output": self.output}]


class _Outputs(Course):
    """Outputs beside what the reference gives for their inputs."""

    def inputs(self, case: Case, seed: int) -> list[Any]:
        return self._inputs(case, seed)

    def judged(self, case: Case, seed: int) -> Run:
        return self._seen(case, Call(case=case.name, seed=seed), False, 1).run

    def fit(self, case: Case, timed: Sequence[Timed]) -> tuple[list[Timed], str]:
        """Those whose inputs are known: earlier calls did not change them, and what the reference
        draws at random does not matter. And why others are left out."""
        if not timed:
            return [], ""
        seed = timed[0].seed
        model = self._prepared(case, self.plan.seeds[0])
        inputs = self._inputs(case, seed)
        value, changed, _ = model.run(inputs, seed)
        model.settle(inputs, seed)
        once = list(timed)
        if changed:
            once = [one for one in timed if not one.again]
        if self.plan.device != "cpu" and _distance(model.run(inputs, seed + 1)[0], value) > 0:
            return [], "the reference draws random numbers: timed outputs are not compared"
        return once, "the reference changes its inputs: outputs of a graph are not compared"

    def distance(self, case: Case, one: Timed) -> float:
        """Largest difference from the reference over the size of the output; infinite where the
        form differs."""
        model = self._prepared(case, self.plan.seeds[0])
        return _distance(one.output, model.roughly(self._inputs(case, one.seed), one.seed))


def _distance(got: Any, value: Any) -> float:
    mine, theirs = flatten(got), flatten(value)
    if [name for name, _ in mine] != [name for name, _ in theirs]:
        return math.inf
    worst = 0.0
    for (_, a), (_, b) in zip(mine, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            worst = max(worst, 0.0 if a == b else math.inf)
            continue
        if not isinstance(a, torch.Tensor) or a.shape != b.shape:
            return math.inf
        if b.numel():
            worst = max(worst, _tensor_distance(a, b.detach().cpu()))
    return worst


def _tensor_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    wide = torch.complex128 if b.is_complex() else torch.float64
    a, b = a.cpu().to(wide), b.to(wide)
    same = (a == b) | ((a != a) & (b != b))
    size = float(torch.where(torch.isfinite(b), b, 0.0).abs().mean()) or 1.0
    off = torch.where(same, 0.0, (a - b).abs().to(torch.float64))
    return float(torch.nan_to_num(off, nan=math.inf).max()) / size
