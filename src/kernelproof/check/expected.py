"""What a case's outputs should be: the reference, the truth, the conditioning, the precisions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from kernelproof.check import budget
from kernelproof.check.compare import Expected
from kernelproof.check.pooling import thinned
from kernelproof.check.reference import ReferenceModel, working_name
from kernelproof.check.values import flatten, on
from kernelproof.timeline import span

# Draws over which the response and the error of serial sums are averaged: none as long as the
# candidate is within what the rest allows, which spares most runs two oracles; a few; and before a
# candidate is called wrong as many as make the average certain: one draw can by chance be far too
# kind to a row that hangs on few numbers.
STAGES = (0, 2, 16)
DRAWS = STAGES[-1]
# Outputs of at most so many bytes are judged on the CPU: statistics are many small operations. Of
# the 74 KB of int8_attention they took six times as long on an H200, launch by launch.
_SMALL_BYTES = 128 << 10
_MOST = 1 << 22  # elements that tell how large an error is


def expect(
    model: ReferenceModel, inputs: list[Any], seed: int, value: Any, draws: int, levels: bool,
    by_row: bool = False, sums: bool = True,
) -> list[tuple[str, Expected]]:  # fmt: skip
    """What each output leaf should be, by name.

    Args:
        value: the reference's output for ``inputs`` and ``seed`` in the working precision.
        levels: also measure the errors that lower precisions make, which name a precision.
        draws, by_row, sums: see `refined`.
    """
    base = _base(model, inputs, seed, value, levels)
    return refined(base, model, inputs, seed, draws, by_row, sums)


def refined(
    base: list[tuple[str, Expected]], model: ReferenceModel, inputs: list[Any], seed: int,
    draws: int, by_row: bool = False, sums: bool = True,
) -> list[tuple[str, Expected]]:  # fmt: skip
    """``base``, of the same call, with response and error of serial sums measured anew.

    Args:
        draws: over which both are averaged; with 0 they count as none.
        by_row: the inputs hold zeros or equal numbers: perturb by the unit of the row (see
            `ReferenceModel.perturbed`), and take the terms of sums as equal.
        sums: measure the error of serial sums too.
    """
    base = _on_one_device(base, model)
    wide = any(isinstance(e.value, torch.Tensor) and e.value.dtype == torch.float64
               for _, e in base)  # fmt: skip
    unit = budget.unit_roundoff(torch.float64 if wide else torch.float32)
    responses = _sizes(base, draws, lambda n: model.perturbed(inputs, seed, n, by_row))
    serial = _sizes(
        base, draws if sums else 0, lambda n: model.serial(inputs, seed, n, unit, by_row)
    )
    base = _on_one_device(base, model)
    place = _place([e.value for _, e in base], model)
    responses, serial = ([on(x, place) for x in sizes] for sizes in (responses, serial))
    return [
        (name, dataclasses.replace(e, response=response, serial=summed))
        for (name, e), response, summed in zip(base, responses, serial, strict=True)
    ]


def _base(
    model: ReferenceModel, inputs: list[Any], seed: int, value: Any, levels: bool
) -> list[tuple[str, Expected]]:
    """Value, truth and levels of each output."""
    truth = flatten(model.truth(inputs, seed))
    # Only now: this may have moved the oracle to the CPU.
    place = _place([leaf for _, leaf in flatten(value)], model)
    value = tree_map(lambda leaf: on(leaf, place), value)
    rounding = budget.rounding_of([*tree_leaves(inputs), *model.model.state_dict().values()])
    base = [
        (name, Expected(leaf, on(exact, place), None, rounding=rounding))
        for (name, leaf), (_, exact) in zip(flatten(value), truth, strict=True)
    ]
    if not levels:
        return base
    found = _levels(model, inputs, seed, base)
    return [
        (name, dataclasses.replace(e, levels=own))
        for (name, e), own in zip(base, found, strict=True)
    ]


@span("precisions")
def _levels(
    model: ReferenceModel, inputs: list[Any], seed: int, base: list[tuple[str, Expected]]
) -> list[dict[str, float]]:
    """`Expected.levels` of each output; none where the GPU's memory does not hold another oracle,
    or the CPU has had to take one over."""
    if model.oracle != model.device:
        return [{} for _ in base]
    found: list[dict[str, float]] = [{} for _ in base]
    try:
        if any(e.value.dtype == torch.float32 for _, e in base if _floats(e.value)):
            # One after the other: the outputs of all three at once are six times the output.
            for name in ("tf32", "bf16", "fp16"):
                rounded = flatten(model.in_precision(inputs, seed, name))
                for errors, (_, e), (_, leaf) in zip(found, base, rounded, strict=True):
                    if _floats(e.value) and e.value.dtype == torch.float32:
                        errors[name] = _rms(on(leaf, str(e.truth.device)), e.truth)
                del rounded
        for errors, (_, e) in zip(found, base, strict=True):
            if _floats(e.value):
                errors[working_name(e.value.dtype)] = _rms(e.value, e.truth)
    except torch.OutOfMemoryError:
        text = "the precision that the error looks like was not measured: the GPU's memory is full"
        model.notes += [text] if text not in model.notes else []
        return [{} for _ in base]
    return found


def _floats(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _on_one_device(
    base: list[tuple[str, Expected]], model: ReferenceModel
) -> list[tuple[str, Expected]]:
    """``base`` where it is judged by now: on a shortage of memory the oracle moves to the CPU."""
    place = _place([e.value for _, e in base], model)
    return [
        (name, dataclasses.replace(e, value=on(e.value, place), truth=on(e.truth, place)))
        for name, e in base
    ]


def _place(values: Sequence[Any], model: ReferenceModel) -> str:
    """Where these outputs are judged."""
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    small = sum(x.numel() * x.element_size() for x in tensors) <= _SMALL_BYTES
    return "cpu" if small else model.oracle


def _sizes(
    base: list[tuple[str, Expected]], draws: int, run: Callable[[int], Any]
) -> list[torch.Tensor | None]:
    """By output, how far ``run`` strays from the truth, element by element."""
    moved = [flatten(run(number)) for number in range(draws)]
    sizes: list[torch.Tensor | None] = []
    for i, (_, e) in enumerate(base):
        if not isinstance(e.truth, torch.Tensor) or not _inexact(e.truth):
            sizes.append(None)
        elif not moved:
            # One zero in all places: such an output can be large.
            sizes.append(
                torch.zeros((), dtype=e.truth.dtype, device=e.truth.device).expand_as(e.truth)
            )
        else:
            truth = on(e.truth, str(moved[-1][i][1].device))
            sizes.append(
                mean_response([on(draw[i][1], str(truth.device)) - truth for draw in moved])
            )
    return sizes


def mean_response(changes: list[torch.Tensor]) -> torch.Tensor:
    """Root mean square over draws, element by element; complex parts apart. A change that is no
    number (the perturbation crossed an overflow) counts as none."""
    parts = [torch.view_as_real(c) if c.is_complex() else c for c in changes]
    finite = [torch.nan_to_num(p, nan=0.0, posinf=0.0, neginf=0.0) for p in parts]
    mean = torch.stack([p.square() for p in finite]).mean(dim=0).sqrt()
    return torch.view_as_complex(mean) if changes[0].is_complex() else mean


def _inexact(x: torch.Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _rms(x: torch.Tensor, truth: torch.Tensor) -> float:
    """Root mean square of x - truth, those that are no numbers counting as zero; of so many
    elements of large outputs, which names a precision as well."""
    error = thinned(x, _MOST).to(torch.float64) - thinned(truth, _MOST)
    total = float(torch.where(torch.isfinite(error), error, 0.0).square().sum())
    return math.sqrt(total / error.numel()) if error.numel() else 0.0
