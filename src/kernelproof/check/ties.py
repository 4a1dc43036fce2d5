"""Integer outputs between near ties: where rounding decides, either neighbour is right.

A kernel that rounds ``x * (1 / scale)`` and a reference that rounds ``x / scale`` differ by one
where the quotient lies within their rounding of a half: in one element of a hundred thousand. The
same happens to comparisons, bins and indices of the largest. An element may have what the oracle
gives there when all floating inputs move by ``LIMIT`` units in the last place of float32 (equal
numbers alike: which of two equal ones comes first is no rounding): as far
as a floating output may be off.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kernelproof.check import budget
from kernelproof.check.compare import Expected
from kernelproof.check.reference import ReferenceModel
from kernelproof.check.values import flatten
from kernelproof.types import Run

# Of two numbers that move up or down at random one way in four brings them past each other: so many
# draws miss one element in 100,000.
_DRAWS = 40
# After so many draws two thirds of honest differences are explained; of many that are no ties few.
_FEW, _FIRST_DRAWS, _SHARE = 20, 6, 0.3


def off_by_integers(run: Run) -> bool:
    """Whether an output of ``run`` without figures, of integers or booleans, has wrong elements."""
    return any(o.figures is None and o.wrong for o in run.outputs if not o.passed)


def with_ties(
    expected: list[tuple[str, Expected]], output: Any, model: ReferenceModel, inputs: list[Any],
    seed: int, by_row: bool = False,
) -> list[tuple[str, Expected]]:  # fmt: skip
    """``expected`` with `Expected.ties`: elements of ``output`` that a tie explains.

    Args:
        output: the candidate's, of the form that ``expected`` has.
        by_row: see `ReferenceModel.perturbed`.
    """
    got = [leaf for _, leaf in flatten(output)]
    off = {
        i: _off(leaf, e) for i, (leaf, (_, e)) in enumerate(zip(got, expected, strict=True))
        if isinstance(leaf, torch.Tensor) and _exact(e.value) and leaf.shape == e.value.shape
        and leaf.dtype == e.value.dtype
    }  # fmt: skip
    left = {i: mask.clone() for i, mask in off.items() if bool(mask.any())}
    for number in range(_DRAWS):
        moved = flatten(model.perturbed(inputs, seed, _DRAWS + number, by_row, units=budget.LIMIT))
        for i, mask in left.items():
            leaf = moved[i][1]
            if isinstance(leaf, torch.Tensor) and leaf.shape == mask.shape:
                mask &= got[i].to(mask.device) != leaf.to(mask.device, got[i].dtype)
        many = sum(int(off[i].sum()) for i in left)
        unexplained = sum(int(mask.sum()) for mask in left.values())
        hopeless = many >= _FEW and unexplained > (1 - _SHARE) * many
        if not unexplained or (number + 1 >= _FIRST_DRAWS and hopeless):
            break
    return [
        (name, dataclasses.replace(e, ties=off[i] & ~left[i]) if i in left else e)
        for i, (name, e) in enumerate(expected)
    ]


def _exact(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())


def _off(got: torch.Tensor, expected: Expected) -> torch.Tensor:
    got = got.to(expected.value.device)
    off: torch.Tensor = (got != expected.value) & (got != expected.truth.to(expected.value.dtype))
    return off
