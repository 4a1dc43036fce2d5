"""Planted bugs: each is told its own words, and no other bug is told them."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from kernelproof.check.explain import pattern

SHAPE = (6, 70, 50)  # heads, rows, columns; 70 = 64 + 6 and 50 = 48 + 2 leave ragged tiles


def noise(shape=SHAPE, seed: int = 1) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64) + 0.1


TRUTH = noise()
OTHER = noise(seed=2)
ROW, COLUMN = torch.arange(SHAPE[1]).unsqueeze(1), torch.arange(SHAPE[2])


def where(mask: torch.Tensor, value=OTHER) -> torch.Tensor:
    """TRUTH with ``value`` at the marked elements."""
    return torch.where(mask.expand(SHAPE), value, TRUTH)


def at(axis: int, indices) -> torch.Tensor:
    mask = torch.zeros(SHAPE[axis], dtype=torch.bool)
    mask[indices] = True
    return mask.view([-1 if a == axis else 1 for a in range(3)])


def taken(axis: int, source) -> torch.Tensor:
    return TRUTH.index_select(axis, torch.tensor(source))


SQUARE = TRUTH[:, :50]
CAUSAL = torch.softmax(noise((2, 9, 12)).masked_fill(torch.ones(9, 12).triu(4).bool(), -9e9), -1)
LESS = torch.softmax(noise((2, 9, 12)).masked_fill(torch.ones(9, 12).triu(1).bool(), -9e9), -1)
RELU = TRUTH.clamp(min=0)

# name -> (got, truth, words)
BUGS = {
    "edge rows": (where(at(1, slice(64, 70))), TRUTH, "ragged last tile of size 8, 16, 32 or 64"),
    "last column": (where(at(2, [49])), TRUTH, "index 49, the last, of axis 2"),
    "L of edges": (where((ROW >= 64) | (COLUMN >= 48)), TRUTH, "tiles of size 8 of axes 1 and 2"),
    "one tile": (where(at(1, slice(32, 40))), TRUTH, "exactly tile 4 of size 8, of axis 1"),
    "carry": (where(at(1, slice(32, 70))), TRUTH, "from position 32 to the end (32 = 1 x 32"),
    "from a position": (where(at(1, slice(37, 70))), TRUTH, "from position 37 to the end, of"),
    "every fifth": (where(at(1, slice(2, None, 5))), TRUTH, "every 5-th index (2, 7, ..) of"),
    "odd lanes": (where(at(2, slice(1, None, 2))), TRUTH, "alternate indices (odd ones) of axis 2"),
    "a lane group": (
        where(((COLUMN % 16) >= 12) & (COLUMN % 16 < 15)), TRUTH, "12..14 of every 16 indices",
    ),
    "checkered tiles": (
        where(((ROW // 16) + (COLUMN // 16)) % 2 == 1), TRUTH, "whole tiles of 16 x 16",
    ),
    "one head": (where(at(0, [2])), TRUTH, "only at index 2 (of 6) of axis 0"),
    "but the last": (where(at(1, slice(0, 69))), TRUTH, "every index but the last (0..68)"),
    "but the first": (where(at(1, slice(1, 70))), TRUTH, "every index but the first (1 on)"),
    "some rows": (where(at(1, [3, 11, 12, 40])), TRUTH, "4 of 70 indices (3, 11, 12, 40)"),
    "upper": (where(ROW < COLUMN), TRUTH, "only above the diagonal of axes 1 and 2"),
    "lower": (where(ROW > COLUMN - 0), TRUTH, "only below the diagonal of axes 1 and 2"),
    "diagonal": (where(ROW == COLUMN), TRUTH, "only on the diagonal of axes 1 and 2"),
    "mask offset": (LESS, CAUSAL, "reaches index i+0 of axis 2 and should reach i+3"),
    "transposed": (SQUARE.transpose(1, 2).contiguous(), SQUARE, "axes 1 and 2 are swapped. First"),
    "stored transposed": (
        TRUTH.transpose(1, 2).reshape(SHAPE), TRUTH, "axes 1 and 2 are swapped in storage",
    ),
    "off by one": (TRUTH.roll(1, 1), TRUTH, "axis 1: index i holds what belongs at i-1"),
    "off by two": (TRUTH.roll(-2, 2), TRUTH, "axis 2: index i holds what belongs at i+2"),
    "heads permuted": (taken(0, [3, 5, 1, 4, 0, 2]), TRUTH, "axis 0 is permuted (index 0 holds 3"),
    "heads interleaved": (taken(0, [0, 3, 1, 4, 2, 5]), TRUTH, "permuted (interleaved: index i"),
    "groups": (taken(0, [0, 0, 0, 1, 1, 1]), TRUTH, "from other indices (index i holds i / 3)"),
    "neighbour": (taken(1, [*range(69), 68]), TRUTH, "a neighbour's values: of axis 1"),
    "sign": (-TRUTH, TRUTH, "expected value with the sign flipped"),
    "factor": (TRUTH * 0.98, TRUTH, "every element is 0.98 times the expected value (("),
    "log2": (TRUTH * math.log2(math.e), TRUTH, "(log2(e): exp2 for exp)"),
    "offset": (TRUTH + 0.25, TRUTH, "the expected value + 0.25 everywhere"),
    "head scale": (TRUTH * noise((6, 1, 1)), TRUTH, "a factor that depends on axis 0 only"),
    "row divisor": (TRUTH * noise((6, 70, 1)), TRUTH, "a factor that is the same along axis 2"),
    "bias": (TRUTH + noise((50,)), TRUTH, "an amount that depends on axis 2 only"),
    "row amount": (TRUTH + noise((6, 70, 1)), TRUTH, "an amount that is the same along axis 2"),
    "zero tail": (where(at(1, [69]), torch.zeros(SHAPE).double()), TRUTH, "where each is zero"),
    "all zero": (TRUTH * 0, TRUTH, "every element is zero"),
    "saturated": (TRUTH.mul(300).clamp(max=448), TRUTH * 300, "448 is the limit of fp8"),
    "large": (
        torch.where(TRUTH.abs() > 2, OTHER, TRUTH), TRUTH, "in magnitude are wrong",
    ),
    "no relu": (TRUTH, RELU, "below 0, which is expected at all of them"),
    "dropout": (
        TRUTH / 0.7 * (torch.rand(SHAPE, generator=torch.Generator().manual_seed(3)) < 0.7), TRUTH,
        "are zero and the others 1.429 times too large",
    ),
    "NaN head": (where(at(0, [5]), torch.tensor(math.nan)), TRUTH, "(only at index 5, the last"),
    "hidden by a mask": (
        torch.where(COLUMN > 20, 0.0, OTHER).expand(SHAPE), TRUTH,
        "zero where values are expected, only at index 21..49",
    ),
    "infinite": (where(at(0, [1]), torch.tensor(math.inf)), TRUTH, "are infinite (only at index 1"),
}  # fmt: skip


@functools.cache
def told(name: str) -> str:
    got, truth, _ = BUGS[name]
    scale = float(truth.abs().mean())
    return pattern(got, truth, (got - truth).abs() > 1e-3 * scale + 1e-3 * truth.abs())


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_told_its_words_and_no_other_is(name: str) -> None:
    words = BUGS[name][2]
    assert words in told(name), told(name)
    # A bug may rightly contain another, as a zero tail lies at the last index.
    wrongly = [other for other in BUGS if other != name and words in told(other)]
    assert wrongly == []


@pytest.mark.parametrize("name", BUGS)
def test_most_bugs_come_with_something_to_look_at(name: str) -> None:
    assert "irst look at" in told(name)


def test_scattered_errors_get_no_pattern() -> None:
    draw = torch.Generator().manual_seed(5)
    for share in (0.001, 0.01, 0.3, 1.1):
        mask = torch.rand(SHAPE, generator=draw) < share
        got = where(mask)
        assert pattern(got, TRUTH, mask) == "", share


def test_a_small_error_everywhere_gets_no_pattern() -> None:
    got = TRUTH + 1e-5 * OTHER
    assert pattern(got, TRUTH, torch.zeros(SHAPE, dtype=torch.bool)) == ""


def test_a_small_factor_is_found_below_the_threshold_of_wrong_elements() -> None:
    edge = torch.where(at(1, slice(64, 70)), TRUTH * (1 + 1e-5), TRUTH)
    assert "index 64..69" in pattern(edge, TRUTH, torch.zeros(SHAPE, dtype=torch.bool))


def test_degenerate_shapes() -> None:
    one = torch.tensor(2.0, dtype=torch.float64)
    assert pattern(one * 2, one, one > 0) == ""
    for shape in ((1,), (1, 1), (2, 1), (3,), (1, 5, 1)):
        truth = noise(shape)
        pattern(truth + 1, truth, torch.ones(shape, dtype=torch.bool))
        pattern(truth * 0, truth, torch.ones(shape, dtype=torch.bool))
        pattern(truth * math.nan, truth, torch.ones(shape, dtype=torch.bool))


def test_one_zero_among_other_wrong_values_is_not_where_it_is_wrong() -> None:
    """As after a weight that is read transposed: all is wrong, one element is zero by chance."""
    got = noise(seed=3)
    got[2, 8, 35] = 0.0
    assert pattern(got, TRUTH, torch.ones(SHAPE, dtype=torch.bool)) == ""
