"""What a case's outputs should be: the reference, the truth, the conditioning, the precisions."""

from __future__ import annotations

from typing import Any

import torch

from kernelproof.check.compare import Expected
from kernelproof.check.reference import ReferenceModel, flatten, working_name

# Perturbations over which the response of a case is averaged before a candidate is called wrong.
DRAWS = 16


def expect(
    model: ReferenceModel,
    inputs: list[Any],
    seed: int,
    value: Any,
    draws: int,
    levels: bool,
    by_row: bool = False,
) -> list[tuple[str, Expected]]:
    """What each output leaf should be, by name.

    Args:
        value: the reference's output for ``inputs`` and ``seed`` in the working precision.
        draws: perturbations over which the response is averaged.
        by_row: perturb by the unit of the row; see `ReferenceModel.perturbed`.
        levels: also measure the errors that lower precisions make, which name a precision.
    """
    truth = flatten(model.truth(inputs, seed))
    moved = [flatten(model.perturbed(inputs, seed, draw, by_row)) for draw in range(draws)]
    rounded = {
        name: flatten(model.in_precision(inputs, seed, name))
        for name in (("tf32", "bf16", "fp16") if levels else ())
    }
    found = []
    for i, (name, leaf) in enumerate(flatten(value)):
        exact = truth[i][1]
        errors = {}
        if levels and isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            if leaf.dtype == torch.float32:
                errors = {p: _rms(r[i][1] - exact) for p, r in rounded.items()}
            errors[working_name(leaf.dtype)] = _rms(leaf.to(torch.float64) - exact)
        response = None
        if isinstance(exact, torch.Tensor) and _inexact(exact):
            response = mean_response([draw[i][1] - exact for draw in moved])
        found.append((name, Expected(leaf, exact, response, errors)))
    return found


def mean_response(changes: list[torch.Tensor]) -> torch.Tensor:
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
