"""The structure of a case's errors: which outputs are pooled, what mistakes they resemble."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kernelproof.check import budget
from kernelproof.check.compare import Expected
from kernelproof.check.oracle import float64, lift
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.structure import (
    MIN_GROUPS,
    Finding,
    Hint,
    Structure,
    counting_hints,
    hint_of,
)
from kernelproof.check.values import flatten, to_device
from kernelproof.timeline import span

# Values that an `eps` has in one place or another.
_EPS = (0.0, 1e-12, 1e-10, 1e-8, 1e-7, 1.1920929e-07, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)

# Elements of an output in which structure is looked for. The slope of so many is known to a few
# ten-thousandths of a unit roundoff, and the least that is told (`budget`) is 1/128 of one.
_MOST = 1 << 23


class Pool:
    """The floating outputs of one case, run by run."""

    def __init__(self) -> None:
        self._model: ReferenceModel | None = None
        self._outputs: dict[str, Structure] = {}
        self._hints: dict[str, list[Hint]] = {}
        # Where the slices of large outputs begin is drawn: whoever knows them could be exact there.
        self._start = random.SystemRandom().random()

    @span("structure of errors")
    def add(
        self, output: Any, expected: list[tuple[str, Expected]], inputs: list[Any],
        model: ReferenceModel,
    ) -> None:  # fmt: skip
        """One run that passed: its output, what it should be, and what it came from."""
        self._model = model
        for (name, got), (_, want) in zip(flatten(output), expected, strict=True):
            value = want.value
            if not isinstance(value, torch.Tensor) or not value.numel():
                continue
            if not value.is_floating_point() and not value.is_complex():
                continue
            if name not in self._outputs:
                real = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
                self._outputs[name] = Structure(real.dtype, depth(inputs, model))
            parts = (thinned(x, _MOST, self._start) for x in (got, value, want.truth))
            self._outputs[name].add(*(x.to(value.device) for x in parts))

    def wants_more(self) -> bool:
        """Whether something stands out that more runs would make certain."""
        found = [(s, s.finding()) for s in self._outputs.values()]
        return any(f and f.outcome != "pass" and s.runs < MIN_GROUPS for s, f in found)

    def finding(
        self, draw: Callable[[], list[Any]], seed: int, mistakes: dict[str, Callable[..., Any]]
    ) -> Finding | None:
        """The gravest finding over the outputs; None where there was too little to tell.

        A failure that rests on too few runs is a note.

        Args:
            draw: makes the case's inputs again; called where something stands out.
            seed: of those inputs.
            mistakes: words -> function of the inputs that makes this mistake.
        """
        gravest = None
        for name, structure in self._outputs.items():
            found = structure.finding()
            if found is not None and found.outcome != "pass":
                if not self._hints and self._model is not None:
                    self._hints = _known(self._model, draw(), seed, mistakes)
                hints = self._hints.get(name, [])
                found = structure.finding(hints)
            if found is None:
                continue
            if found.outcome == "fail" and self._stagnates(name, found.slope, draw, seed):
                words = ": plain sums of many positive terms, as in a softmax, lose as much"
                found = Finding("note", found.message + words)
            outcome = found.outcome if found.certain or found.outcome != "fail" else "note"
            rank = ("pass", "note", "fail").index
            if gravest is None or rank(outcome) > rank(gravest.outcome):
                gravest = Finding(outcome, f"{name}: {found.message}")
        return gravest

    def _stagnates(self, name: str, slope: float, draw: Callable[[], list[Any]], seed: int) -> bool:
        """Whether plain fp32 sums of positive terms can have a scale error of ``slope``: a running
        total that has grown large swallows small terms, always to the same side."""
        if self._model is None or not math.isfinite(slope):
            return False
        inputs, unit = draw(), budget.unit_roundoff(torch.float32)
        truth = dict(flatten(self._model.truth(inputs, seed)))[name]
        noisy = dict(flatten(self._model.serial(inputs, seed, 0, unit, positive=True)))[name]
        change, size = (torch.nan_to_num(t).norm() for t in (noisy - truth, truth))
        return bool(slope * size <= budget.STAGNATION * change)


def thinned(x: torch.Tensor, most: int, start: float = 0.0) -> torch.Tensor:
    """Evenly spaced slices of ``x`` with at most ``most`` elements, or a few more: of the longest
    axes but the last, whose rows stay whole as long as others can be thinned. ``start``: where the
    first is, as a share of their distance below 1."""
    order = sorted(range(x.dim()), key=lambda axis: (axis == x.dim() - 1, -x.shape[axis]))
    for axis in order:
        if x.numel() <= most:
            break
        step = min(math.ceil(x.numel() / most), max(1, x.shape[axis] // MIN_GROUPS))
        if axis == x.dim() - 1:
            step = min(math.ceil(x.numel() / most), x.shape[axis])
        first = int(start * step)
        # As many wherever they begin, as runs that are pooled must be alike.
        count = max(1, x.shape[axis] // step)
        part = slice(first, first + (count - 1) * step + 1, step)
        x = x[(slice(None),) * axis + (part,)]
    return x


def depth(inputs: list[Any], model: ReferenceModel) -> int:
    """An upper limit of how many terms a matrix product here sums: the longest axis, or all but the
    first axis of a weight (convolutions)."""
    weights = list(model.model.state_dict().values())
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)] + weights
    longest: list[int] = [n for t in tensors for n in t.shape]
    filters = [t[0].numel() for t in weights if t.dim() > 2 and t.numel()]
    return max(1, *longest, *filters) if longest else 1


def _known(
    model: ReferenceModel, inputs: list[Any], seed: int, mistakes: dict[str, Callable[..., Any]]
) -> dict[str, list[Hint]]:
    """What known mistakes would do to each output, from one draw of the inputs."""
    value, truth = flatten(model.run(inputs, seed)[0]), flatten(model.truth(inputs, seed))
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    sizes = {n for t in [*tensors, *(v for _, v in value)] for n in getattr(t, "shape", ())}
    hints = {name: counting_hints(sizes) for name, _ in value}
    for words, other in _slips(model, inputs, seed, mistakes):
        leaves = flatten(other)
        if len(leaves) != len(value):
            continue
        for (name, own), (_, exact), (_, leaf) in zip(value, truth, leaves, strict=True):
            if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                hint = hint_of(words, leaf.double(), own, exact, own.dtype)
                hints[name] += [hint] if hint else []
    return hints


def _slips(
    model: ReferenceModel, inputs: list[Any], seed: int, mistakes: dict[str, Callable[..., Any]]
) -> Iterator[tuple[str, Any]]:
    """Words -> the output that a known mistake gives, in float64."""
    for module in model.exact.modules():
        for attribute, own in list(vars(module).items()):
            if "eps" not in attribute or not isinstance(own, float):
                continue
            for other in _EPS:
                if other != own:
                    setattr(module, attribute, other)
                    try:
                        slipped = model.truth(inputs, seed)
                    except (RuntimeError, ValueError):
                        continue  # this module takes no such value
                    finally:
                        setattr(module, attribute, own)
                    yield f"{attribute} = {other:.2g} for {own:.2g}", slipped
    for words, slip in mistakes.items():
        yield words, _slipped(slip, inputs, model)


def _slipped(slip: Callable[..., Any], inputs: list[Any], model: ReferenceModel) -> Any:
    with float64():
        return slip(*lift(to_device(inputs, model.device)))
