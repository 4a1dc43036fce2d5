"""Does the candidate give the gradients that the reference gives?

A kernel that is written for the forward pass alone is honest; one that cuts the graph or gives
other gradients is a trap for whoever trains with it. So by default this informs, and it decides
where the problem says ``BACKWARD = True``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from kernelproof.backward import Gradients
from kernelproof.check.compare import compare
from kernelproof.check.expected import DRAWS, STAGES, expect, refined
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.values import flatten, to_device
from kernelproof.errors import CandidateError
from kernelproof.seeding import seed_all
from kernelproof.types import Case, Check, Outcome, OutputVerdict

if TYPE_CHECKING:
    from kernelproof.check.plan import Plan
    from kernelproof.problem import Reference

NAME = "gradients"


def judge(
    reference: Reference, plan: Plan, case: Case, ask: Callable[[list[Any]], list[Any]]
) -> Check | None:
    """Compare the candidate's gradients with those of float64, by the budget of any output.

    Args:
        case: under the first seed of ``plan``.
        ask: the candidate's gradients for inputs and cotangents (see `backward.Gradients`), on the
            CPU; raises CandidateError where its backward does.

    Returns None where the reference itself has no gradients.
    """
    required = bool(getattr(reference.module, "BACKWARD", False))
    bad: Outcome = "fail" if required else "note"
    seed = plan.seeds[0]
    inputs = reference.drawn(case, seed)
    args, kwargs = reference.init_args(case)

    def both(*args: Any, **kwargs: Any) -> Gradients:
        return Gradients(reference.module.Model(*args, **kwargs))

    try:
        training = reference.problem.training
        model = ReferenceModel(both, args, kwargs, seed, plan.device, training)
        seed_all(seed)
        outputs = model.model.outputs(to_device(inputs, plan.device))
    except (RuntimeError, ValueError, TypeError):
        # Work in place on its inputs, say.
        return None
    if not any(y.requires_grad for y in outputs):
        return None
    inputs.append(_cotangents(outputs, seed))
    try:
        got = ask(inputs)
    except CandidateError as error:
        first = error.message.splitlines()[0]
        return Check(name=NAME, outcome=bad, message=f"its backward does not run: {first}")
    if not got:
        text = "forward only: its output carries no gradient, that of the reference does"
        return Check(name=NAME, outcome="fail" if required else "skip", message=text)
    try:
        value, _, _ = model.run(inputs, seed)
    except RuntimeError:
        # An operation without a derivative.
        return None
    wrong = _wrong(model, inputs, seed, value, got)
    if wrong is None:
        return Check(name=NAME, outcome="pass")
    text = f"{wrong.message}. Training with it would go wrong and not say so"
    return Check(name=NAME, outcome=bad, message=f"case {case.name}: {text}")


def _cotangents(outputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
    """Random, one for each of ``outputs``."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(y.shape, generator=draw, dtype=torch.float64).to(y.dtype) for y in outputs]


def _wrong(
    model: ReferenceModel, inputs: list[Any], seed: int, value: list[Any], got: list[Any]
) -> OutputVerdict | None:
    """The first gradient that is wrong, judged in the steps in which outputs are."""
    expected = expect(model, inputs, seed, value, STAGES[0], False)
    if len(got) != len(value):
        text = f"it gives {len(got)} gradients, the reference {len(value)}: other parameters"
        return OutputVerdict(
            name=NAME, shape=(), dtype="", passed=False, compat=False, message=text
        )  # fmt: skip
    names = [f"gradient by {by}" for by in model.model.names(inputs[:-1])]
    bad = None
    for draws in STAGES:
        if draws:
            expected = refined(expected, model, inputs, seed, draws)
        verdicts = [
            compare(name, leaf, want, None, None)
            for name, (_, leaf), (_, want) in zip(names, flatten(got), expected, strict=True)
        ]
        bad = next((v for v in verdicts if not v.passed), None)
        if bad is not None and got[verdicts.index(bad)] is None:
            return bad.model_copy(update={"message": f"there is no {bad.name}"})
        if bad is None or (bad.figures is None and draws < DRAWS):
            return bad
    return bad
