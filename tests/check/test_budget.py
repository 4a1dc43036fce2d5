"""The error budget: what passes, what cannot, and what it must not depend on."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelproof.check.budget import LIMIT, compat_tolerance, excess, unit_roundoff


def setting(seed: int = 0, rows: int = 6, width: int = 50):
    draw = torch.Generator().manual_seed(seed)
    truth = torch.randn(rows, width, generator=draw, dtype=torch.float64)
    honest = truth * (1 + 1e-7 * torch.randn(rows, width, generator=draw, dtype=torch.float64))
    response = 6e-8 * truth
    return truth, honest, response


def over(got, truth, honest, response):
    return excess(got, truth, honest, response, torch.float32)


def test_the_reference_itself_is_within() -> None:
    truth, honest, response = setting()
    result = over(honest, truth, honest, response)
    assert result.within() and result.all == pytest.approx(1.0)


def test_an_error_far_above_the_reference_is_not() -> None:
    truth, honest, response = setting()
    assert not over(truth * (1 + 1e-5), truth, honest, response).within()


def test_one_wrong_row_fails_among_many_right_ones() -> None:
    truth, honest, response = setting(rows=4000)
    got = honest.clone()
    # 1.5e-6 in one row of 4000 leaves the error over the whole tensor nearly as it was.
    got[17] = truth[17] * (1 + 3e-6)
    result = over(got, truth, honest, response)
    assert result.all < LIMIT and not result.within() and result.worst_row == 17


def test_one_wrong_column_fails_among_many_right_ones() -> None:
    """It is little of any row."""
    truth, honest, response = (x.reshape(20, 30, 200) for x in setting(rows=600, width=200))
    got = honest.clone()
    got[..., 13] = truth[..., 13] * (1 + 3e-6)
    result = over(got, truth, honest, response)
    assert not result.within() and result.all < LIMIT
    assert result.column and result.worst_row == 13
    # Of few elements the reference's error is a matter of luck.
    assert not over(*(x[:3, :4] for x in (got, truth, honest, response))).column


def test_a_column_of_which_the_reference_is_sure_may_be_rounded_otherwise() -> None:
    truth, honest, _ = setting(rows=600, width=200)
    honest[:, 5] = truth[:, 5]
    got = honest.clone()
    got[:, 5] *= 1 + 3e-7
    assert over(got, truth, honest, torch.zeros_like(truth)).within()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_number_never_passes(bad: float) -> None:
    truth, honest, response = setting()
    got = honest.clone()
    got[2, 3] = bad
    assert not over(got, truth, honest, response).within()


def test_a_lucky_reference_does_not_fail_a_candidate() -> None:
    truth, honest, _ = setting()
    honest[1] = truth[1]
    got = truth * (1 + 1e-7)
    assert over(got, truth, honest, torch.zeros_like(truth)).within()


def test_an_exact_zero_row_allows_nothing_but_zero() -> None:
    truth = torch.zeros(2, 4, dtype=torch.float64)
    assert over(truth, truth, truth, truth).within()
    assert not over(truth + 1e-30, truth, truth, truth).within()


def test_empty_and_scalar_outputs() -> None:
    empty = torch.zeros(0, 4, dtype=torch.float64)
    assert over(empty, empty, empty, empty).within()
    scalar = torch.tensor(2.0, dtype=torch.float64)
    assert over(scalar * (1 + 1e-8), scalar, scalar, scalar * 0).within()
    assert not over(scalar * 1.001, scalar, scalar, scalar * 0).within()


def test_the_output_dtype_sets_the_floor() -> None:
    truth, _, _ = setting()
    nothing = torch.zeros_like(truth)
    got = truth * (1 + 2e-3)
    assert excess(got, truth, truth, nothing, torch.bfloat16).within()
    assert not excess(got, truth, truth, nothing, torch.float32).within()


# Not down to where what is allowed for flushing to zero counts.
@settings(deadline=None, max_examples=40)
@given(st.integers(-90, 200), st.integers(0, 2**31))
def test_scale_does_not_matter(power: int, seed: int) -> None:
    truth, honest, response = setting(seed)
    got = truth * (1 + 5e-7)
    scale = 2.0**power
    one = over(got, truth, honest, response)
    two = over(got * scale, truth * scale, honest * scale, response * scale)
    assert two.rows == pytest.approx(one.rows, rel=1e-9)
    assert two.all == pytest.approx(one.all, rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31))
def test_order_of_elements_and_rows_does_not_matter(seed: int) -> None:
    truth, honest, response = setting(seed)
    draw = torch.Generator().manual_seed(seed)
    got = truth * (1 + 5e-7 * torch.randn(truth.shape, generator=draw, dtype=torch.float64))
    rows, columns = torch.randperm(6, generator=draw), torch.randperm(50, generator=draw)
    mixed = [t[rows][:, columns] for t in (got, truth, honest, response)]
    assert over(*mixed).rows == pytest.approx(over(got, truth, honest, response).rows)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-9, 1e-2), st.floats(1.0, 1e3))
def test_more_error_is_never_judged_better(error: float, factor: float) -> None:
    truth, honest, response = setting()
    small = over(truth * (1 + error), truth, honest, response)
    large = over(truth * (1 + error * factor), truth, honest, response)
    assert large.rows >= small.rows * (1 - 1e-6)


def test_compat_tolerances_are_the_published_ones() -> None:
    assert compat_tolerance(torch.float32, None, None) == (1e-4, 1e-4)
    assert compat_tolerance(torch.bfloat16, None, None) == (1e-2, 1e-2)
    assert compat_tolerance(torch.float32, 1e-3, None) == (1e-3, 1e-4)
    assert unit_roundoff(torch.float32) == 2**-24


def test_what_the_oracle_cancelled_to_zero_may_be_tiny() -> None:
    truth = torch.tensor([[3.0], [0.0]], dtype=torch.float64)
    nothing = torch.zeros_like(truth)

    def within(stray: float) -> bool:
        got = truth + torch.tensor([[0.0], [stray]], dtype=torch.float64)
        return excess(got, truth, truth, nothing, torch.float32).within()

    assert within(-7e-20)
    assert not within(1e-14)
    assert not within(math.nan)
    # Beside nothing but zeros there is nothing to cancel from.
    assert not excess(nothing - 7e-20, nothing, nothing, nothing, torch.float32).within()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_no_normal_number_may_be_flushed_to_zero(dtype: torch.dtype) -> None:
    tiny = torch.finfo(torch.float32).tiny
    truth = torch.tensor([[3.0, 1.0], [tiny * 0.99, -tiny / 2]], dtype=torch.float64)
    nothing = torch.zeros_like(truth)
    got = truth.where(truth.abs() >= tiny, 0.0)
    assert excess(got, truth, truth, nothing, dtype).within()
    assert not excess(got * 1.5, truth, truth, nothing, dtype).within()
    # Half precision has numbers below its smallest normal one, and hardware keeps them.
    small = torch.tensor([[3.0, 1.0], [2.0**-20, 2.0**-21]], dtype=torch.float64)
    flushed = small.where(small > 1e-5, 0.0)
    assert not excess(flushed, small, small, nothing, dtype).within()
