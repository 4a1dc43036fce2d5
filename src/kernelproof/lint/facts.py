"""What the scenes show about inputs, outputs and the reference itself, over all cases."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.lint.cheats import identical
from kernelproof.lint.scene import Scene


@dataclasses.dataclass
class InputFacts:
    """An input leaf over all scenes. ``low``: smallest value of a floating tensor. ``constant``:
    every tensor had one value only. ``repeats``: another seed gave the same. ``scalars``: values of
    one that is no tensor."""

    floating: bool = False
    elements: int = 0
    low: float = math.inf
    constant: bool = True
    repeats: bool = True
    scalars: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class OutputFacts:
    """An output leaf over all scenes. ``top``: largest finite magnitude. ``constant``: all elements
    equal, in every scene that has several. ``odd``: case -> share of elements that are not finite.
    ``finite``: finite elements in all. ``atol``: absolute tolerance of the compat verdict."""

    elements: int = 0
    several: bool = False
    top: float = 0.0
    constant: bool = True
    odd: dict[str, float] = dataclasses.field(default_factory=dict)
    finite: int = 0
    atol: float = 0.0


@dataclasses.dataclass
class Facts:
    """``changed``: inputs that the reference writes to. ``random``: cases whose output depends on
    the seed of the random numbers; ``unsteady``: cases that give different outputs with the same
    one."""

    inputs: dict[str, InputFacts] = dataclasses.field(default_factory=dict)
    outputs: dict[str, OutputFacts] = dataclasses.field(default_factory=dict)
    changed: set[str] = dataclasses.field(default_factory=set)
    random: list[str] = dataclasses.field(default_factory=list)
    unsteady: list[str] = dataclasses.field(default_factory=list)

    def add(self, scene: Scene) -> None:
        """Take in one scene."""
        for index, (name, leaf) in enumerate(zip(scene.names, scene.inputs, strict=True)):
            other = scene.other_inputs[index] if index < len(scene.other_inputs) else None
            _input(self.inputs.setdefault(name, InputFacts()), leaf, other)
        for name, leaf in scene.outputs:
            if isinstance(leaf, torch.Tensor) and leaf.numel():
                fact = self.outputs.setdefault(name, OutputFacts())
                fact.atol = budget.compat_tolerance(leaf.dtype, *scene.tolerance)[0]
                _output(fact, leaf, scene.case.name)
        self.changed.update(scene.changed)
        for cases, rng in ((self.unsteady, scene.seed), (self.random, scene.seed + 1)):
            again = scene.run(rng=rng)
            same = len(again) == len(scene.outputs) and all(
                identical(leaf, scene.outputs[i][1]) or scene.repeats(i, leaf)
                for i, (_, leaf) in enumerate(again)
            )
            if not same:
                if scene.case.name not in cases:
                    cases.append(scene.case.name)
                break


def _input(fact: InputFacts, leaf: Any, other: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        if leaf not in fact.scalars:
            fact.scalars.append(leaf)
        return
    fact.floating = leaf.is_floating_point()
    if leaf.numel() == 0:
        return
    fact.elements = max(fact.elements, leaf.numel())
    fact.constant &= bool((leaf == leaf.flatten()[0]).all())
    fact.repeats &= identical(leaf, other)
    if fact.floating:
        wide = leaf.float() if leaf.dtype.itemsize == 1 else leaf  # eight bits have no minimum
        fact.low = min(fact.low, float(wide.nan_to_num(nan=-math.inf).min()))


def _output(fact: OutputFacts, leaf: torch.Tensor, case: str) -> None:
    fact.elements += leaf.numel()
    eight = leaf.is_floating_point() and leaf.dtype.itemsize == 1
    good = torch.isfinite(leaf.float() if eight else leaf)
    count = int(good.sum())
    fact.finite += count
    if count:
        wide = torch.complex128 if leaf.is_complex() else torch.float64
        fact.top = max(fact.top, float(leaf[good].to(wide).abs().max()))
    if count < leaf.numel():
        fact.odd[case] = 1 - count / leaf.numel()
    if leaf.numel() > 1:
        fact.several = True
        fact.constant &= bool((leaf == leaf.flatten()[0]).all())
