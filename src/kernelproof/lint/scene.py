"""One case under one seed, ready for cheats: reference, truth, and another draw of both."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from kernelproof.check import budget
from kernelproof.check.compare import Expected, compare
from kernelproof.check.expected import DRAWS, expect
from kernelproof.check.oracle import lift
from kernelproof.check.reference import ReferenceModel, guarded
from kernelproof.check.values import flatten, to_device
from kernelproof.types import Case, OutputVerdict

if TYPE_CHECKING:
    from kernelproof.problem import Reference

# A check averages the conditioning over many draws before it calls a candidate wrong. That is
# repeated here only for a cheat whose ratio is below this: one draw is not off by more.
_DOUBTFUL = 100.0

Leaves = list[tuple[str, Any]]


@dataclasses.dataclass
class Scene:
    """``names`` and ``inputs`` are the leaves of the arguments of ``forward``; ``other_inputs`` and
    ``other_outputs`` those under another seed. ``outputs`` is what the reference gives, ``changed``
    the arguments that it writes to, ``state`` and ``other_state`` the weights and
    those of another construction."""

    case: Case
    seed: int
    model: ReferenceModel
    names: list[str]
    inputs: list[Any]
    spec: TreeSpec
    other_inputs: list[Any]
    outputs: Leaves
    other_outputs: Leaves
    changed: list[str]
    state: dict[str, torch.Tensor]
    other_state: dict[str, torch.Tensor]
    expected: list[tuple[str, Expected]]
    tolerance: tuple[float | None, float | None]
    _exact: list[tuple[str, Expected]] | None = None

    def run(self, inputs: list[Any] | None = None, rng: int | None = None) -> Leaves:
        """Output leaves of the reference for other input leaves or under another RNG seed."""
        given = self.spec_inputs(self.inputs if inputs is None else inputs)
        return flatten(self.model.run(given, self.seed if rng is None else rng)[0])

    @property
    def limit(self) -> float:
        """The limit of the proof ratio."""
        return budget.LIMIT

    @property
    def elements(self) -> int:
        """Elements of all inputs and outputs together."""
        leaves = [*self.inputs, *(leaf for _, leaf in self.outputs)]
        return sum(t.numel() for t in leaves if isinstance(t, torch.Tensor))

    def spec_inputs(self, leaves: list[Any]) -> list[Any]:
        """The arguments of ``forward`` made of ``leaves``."""
        return list(tree_unflatten(leaves, self.spec))

    @contextlib.contextmanager
    def weight(self, name: str, value: torch.Tensor) -> Iterator[None]:
        """The reference with one parameter or buffer replaced, in the working precision."""
        held = self.model.model.state_dict()[name]
        kept = held.clone()
        try:
            held.copy_(value)
            yield
        finally:
            held.copy_(kept)

    def judge(self, index: int, got: Any) -> OutputVerdict:
        """The verdict on ``got`` as output leaf ``index``, as a check would give it."""
        name, want = self.expected[index]
        verdict = compare(name, got, want, *self.tolerance, explained=False)
        if verdict.passed or verdict.figures is None:
            return verdict
        if not (max(verdict.ratio_rows, verdict.ratio_all) < _DOUBTFUL):
            return verdict
        if self._exact is None:
            given = self.spec_inputs(self.inputs)
            value = self.model.run(given, self.seed)[0]
            self._exact = expect(self.model, given, self.seed, value, DRAWS, False)
        return compare(name, got, self._exact[index][1], *self.tolerance, explained=False)

    def repeats(self, index: int, got: Any) -> bool:
        """Whether ``got`` is output leaf ``index`` again, up to a few roundings. A reference that
        is random or remembers calls has no truth and no conditioning to be judged by."""
        name, leaf = self.outputs[index]
        if not isinstance(leaf, torch.Tensor):
            return bool(leaf == got)
        exact = lift(leaf)
        again = Expected(leaf, exact, torch.zeros_like(exact))
        return compare(name, got, again, 0.0, 0.0, explained=False).passed


class Stage:
    """Makes the scenes of one problem; a model is kept while the constructor's arguments stay."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self._key = ""
        self._model: ReferenceModel | None = None
        self._other: dict[str, torch.Tensor] = {}

    def inputs(self, case: Case, seed: int) -> list[Any]:
        """Inputs of ``case``; raises ProblemError where ``get_inputs`` fails."""
        made: list[Any] = self._guarded(case, lambda: self.reference.drawn(case, seed))
        return made

    def scene(self, case: Case, seed: int, other: int) -> Scene:
        """``case`` under ``seed``, with ``other`` for the other draw.

        Raises:
            ProblemError: the reference does not run.
        """
        model = self._prepared(case, seed, other)
        given, second = self.inputs(case, seed), self.inputs(case, other)
        value, changed, _ = self._guarded(case, lambda: model.run(given, seed))
        another = self._guarded(case, lambda: model.run(second, other)[0])
        expected = self._guarded(case, lambda: expect(model, given, seed, value, 1, False))
        leaves, spec = tree_flatten(given)
        arguments = _arguments(self.reference.module.Model, len(given))
        return Scene(
            case=case,
            seed=seed,
            model=model,
            names=_names(arguments, given),
            inputs=leaves,
            spec=spec,
            other_inputs=tree_flatten(second)[0],
            outputs=flatten(to_device(value, "cpu")),
            other_outputs=flatten(to_device(another, "cpu")),
            changed=[arguments[i] for i in changed],
            state=model.state(),
            other_state=self._other,
            expected=expected,
            tolerance=(self.reference.problem.atol, self.reference.problem.rtol),
        )

    def _prepared(self, case: Case, seed: int, other: int) -> ReferenceModel:
        args, kwargs = self._guarded(case, lambda: self.reference.init_args(case))
        key = repr((args, kwargs, seed))
        if self._model is None or key != self._key:
            factory, training = self.reference.module.Model, self.reference.problem.training

            def construct(number: int) -> ReferenceModel:
                made: ReferenceModel = self._guarded(
                    case, lambda: ReferenceModel(factory, args, kwargs, number, "cpu", training)
                )
                return made

            self._other = construct(other).state()
            self._model = construct(seed)
            self._key = key
        return self._model

    def _guarded(self, case: Case, run: Callable[[], Any]) -> Any:
        return guarded(self.reference.problem.name, case.name, run)


def _arguments(model: Any, count: int) -> list[str]:
    """Names of the first ``count`` arguments of ``forward``."""
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    plain = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL][:count]
    return plain + [f"input[{i}]" for i in range(len(plain), count)]


def _names(arguments: list[str], inputs: list[Any]) -> list[str]:
    """Names of the input leaves: ``x``, ``states[0]``."""
    return [
        name + keystr(path)
        for name, value in zip(arguments, inputs, strict=True)
        for path, _ in tree_flatten_with_path(value)[0]
    ]
