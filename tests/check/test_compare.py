"""One output: figures, named precision, and the words for a failure."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from kernelproof.check import blocks
from kernelproof.check.compare import Expected, compare
from kernelproof.check.explain import pattern
from kernelproof.check.figures import figures, looks_like, lower_precision
from kernelproof.types import OutputVerdict
from kernelproof.worker.wire import Foreign


def expected(truth: torch.Tensor, value: torch.Tensor | None = None) -> Expected:
    value = truth.float() if value is None else value
    return Expected(value, truth, torch.zeros_like(truth), {"fp32": 1e-8, "tf32": 1e-4})


def judge(got, want: Expected):
    return compare("output", got, want, None, None)


@pytest.fixture
def truth() -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_rounded_truth_passes(truth) -> None:
    verdict = judge(truth.float(), expected(truth))
    assert verdict.passed and verdict.compat and verdict.figures is not None
    assert 23 < verdict.figures.effective_bits < 27
    assert verdict.figures.max_ulp <= 0.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.reshape(16, 8), "shape (16, 8), expected (8, 16)"),
        (lambda t: t.double(), "dtype torch.float64, expected torch.float32"),
        (lambda t: Foreign("my.LazyTensor"), "my.LazyTensor, expected exactly torch.Tensor"),
        (lambda t: Foreign("torch.Tensor"), "sparse or in another layout, expected a dense"),
        (lambda t: t * 2, "2 times the expected value"),
        (lambda t: -t, "with the sign flipped"),
        (lambda t: t * 0, "very element is zero"),
        (lambda t: t.roll(1, 1), "hifted along axis 1: index i holds what belongs at i-1"),
        (lambda t: t.index_fill(0, torch.tensor([3]), math.nan), "NaN (only at index 3 (of 8) of"),
        (lambda t: t + torch.eye(8, 16) * (torch.arange(16) == 5), "Wrong only at element [5, 5]"),
    ],
)
def test_a_failure_says_what_it_looks_like(truth, change, words: str) -> None:
    verdict = judge(change(truth.float()), expected(truth))
    assert not verdict.passed and not verdict.compat
    assert words in verdict.message


def test_swapped_axes_are_named() -> None:
    truth = torch.randn(6, 6, dtype=torch.float64)
    assert pattern(truth.T, truth, truth != truth.T).startswith("axes 0 and 1 are swapped")


def test_nan_and_inf_only_where_the_reference_has_them(truth) -> None:
    truth[1, 2], truth[3, 4] = math.nan, math.inf
    value = truth.float()
    assert judge(value.clone(), expected(truth, value)).passed
    for wrong in (0.0, -math.inf, math.nan):
        got = value.clone()
        got[3, 4] = wrong
        assert not judge(got, expected(truth, value)).passed
    got = value.clone()
    got[0, 0] = math.nan
    assert not judge(got, expected(truth, value)).passed


def test_overflow_of_the_working_precision_is_the_truth_there() -> None:
    truth = torch.tensor([[1e6, 1.0]], dtype=torch.float64)
    value = truth.half()
    assert judge(value.clone(), expected(truth, value)).passed
    assert not judge(torch.tensor([[6e4, 1.0]]).half(), expected(truth, value)).passed


def test_a_sum_near_the_end_of_the_range_may_overflow_on_the_way() -> None:
    """Partial sums pass it in one order and not in another."""
    truth = torch.tensor([[3.2e38, 1.0, 1e30]], dtype=torch.float64)
    value, want = truth.float(), expected(truth)

    def with_first(x: float, at: int = 0) -> torch.Tensor:
        got = value.clone()
        got[0, at] = x
        return got

    verdict = judge(with_first(math.inf), want)
    assert verdict.passed and verdict.figures is not None and verdict.figures.effective_bits > 23
    for wrong in (with_first(-math.inf), with_first(math.nan), with_first(1e38)):
        assert not judge(wrong, want).passed
    # What is far from the end has overflowed for no reason, unless its terms come near the end.
    assert not judge(with_first(math.inf, 2), want).passed
    moved = dataclasses.replace(want, response=torch.tensor([[0.0, 0.0, 2e38 * 2.0**-24]]).double())
    assert judge(with_first(math.inf, 2), moved).passed
    assert not judge(with_first(math.nan, 2), moved).passed
    # The reference may be the one that overflows.
    theirs = expected(truth, with_first(math.inf))
    assert judge(value, theirs).passed and judge(with_first(math.inf), theirs).passed
    assert not judge(with_first(1e38), theirs).passed


def test_sums_of_half_precision_have_room() -> None:
    truth = torch.tensor([[6e4, 1.0]], dtype=torch.float64)
    assert not judge(torch.tensor([[math.inf, 1.0]]).half(), expected(truth, truth.half())).passed


def test_integers_must_be_equal() -> None:
    value = torch.arange(6)
    assert judge(value.clone(), Expected(value, value, None)).passed
    verdict = judge(value + (value == 4), Expected(value, value, None))
    assert (
        not verdict.passed
        and verdict.wrong == 1
        and "first at [4]: 5 instead of 4" in verdict.message
    )


def test_an_integer_may_agree_with_the_oracle_instead() -> None:
    value, truth = torch.tensor([1, 2]), torch.tensor([1, 3])
    assert judge(torch.tensor([1, 3]), Expected(value, truth, None)).passed
    assert not judge(torch.tensor([1, 4]), Expected(value, truth, None)).passed


def test_complex_outputs_are_judged() -> None:
    truth = torch.randn(4, 4, dtype=torch.complex128)
    want = Expected(truth.to(torch.complex64), truth, torch.zeros_like(truth))
    assert judge(truth.to(torch.complex64), want).passed
    assert not judge((truth * 1j).to(torch.complex64), want).passed


def test_values_that_are_no_tensors() -> None:
    assert judge(None, Expected(None, None, None)).passed
    assert judge(3, Expected(3, 3, None)).passed
    assert not judge(4, Expected(3, 3, None)).passed
    assert not judge(math.nan, Expected(0.5, 0.5, None)).passed


def test_precision_names() -> None:
    levels = {"fp32": 1e-7, "tf32": 4e-4, "fp16": 4.5e-4, "bf16": 3e-3}
    assert looks_like(1.3e-7, levels) == "fp32"
    assert looks_like(3.9e-4, levels) == "tf32 or fp16"
    assert looks_like(2.6e-3, levels) == "bf16"
    assert looks_like(1e-9, levels) == "fp32 or better"
    assert looks_like(1.0, levels) == "wrong values"
    assert looks_like(math.nan, levels) == "no number"
    assert looks_like(0.0, levels) == "exact"


def test_the_error_of_a_lower_precision_is_named() -> None:
    levels = {"fp32": 1e-7, "tf32": 4e-4, "fp16": 4.5e-4, "bf16": 3e-3}
    assert "as large as that of tf32 or fp16" in lower_precision(3e-4, levels)
    assert "of bf16:" in lower_precision(4e-3, levels)
    for rms in (1.5e-7, 1e-5, 1.0, math.nan, math.inf, 0.0):
        assert lower_precision(rms, levels) == ""
    assert lower_precision(3e-4, {}) == ""


def test_figures_by_hand() -> None:
    got = torch.tensor([1.0, 2.0 + 2**-22], dtype=torch.float64)
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    seen = figures(got, truth, torch.float32)
    assert seen.max_abs == 2**-22 and seen.mean_abs == 2**-23 and seen.max_rel == 2**-23
    assert seen.max_ulp == 1.0  # the distance between floats at 2.0 is 2**-22
    assert seen.effective_bits == pytest.approx(math.log2((5 / 2) ** 0.5 / (2**-22 / 2**0.5)))


@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.index_fill(1, torch.tensor([5]), 9.0)])
def test_a_large_output_is_judged_in_parts(change, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(2)
    truth = torch.randn(3, 7, 16, generator=draw, dtype=torch.float64)
    got = change(truth.float())
    whole = judge(got, expected(truth))
    monkeypatch.setattr("kernelproof.check.compare._PART", 64)
    parts = judge(got, expected(truth))
    assert (parts.passed, parts.compat) == (whole.passed, whole.compat)
    assert (parts.shape, parts.wrong) == (whole.shape, whole.wrong)
    if not parts.passed:
        assert parts.worst_index[2] == 5 and "of rows" in parts.message
        assert float(truth[parts.worst_index]) == parts.worst_expected


def test_each_part_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelproof.check.compare._PART", 64)
    truth = torch.ones(6, 32, dtype=torch.float64)
    for row in range(6):
        got = truth.float()
        got[row, 3] = math.nan
        verdict = judge(got, expected(truth))
        assert not verdict.passed and verdict.worst_index == (row, 3)


def test_a_bool_has_bytes_of_0_and_1() -> None:
    truth = torch.tensor([True, False, True])
    expected = Expected(truth, truth, torch.zeros(3))
    got = torch.tensor([255, 0, 1], dtype=torch.uint8).view(torch.bool)
    assert torch.equal(got, truth)  # as torch has it, which for `&` is another matter
    verdict = compare("output", got, expected, None, None)
    assert not verdict.passed and "bytes other than 0 and 1" in verdict.message
    assert compare("output", truth.clone(), expected, None, None).passed


def _floats(dtype: torch.dtype, shape: tuple[int, ...], odd: bool) -> Expected:
    generator = torch.Generator().manual_seed(3)
    truth = torch.randn(shape, generator=generator, dtype=torch.float64) * 10
    value = truth.to(dtype)
    response = (torch.randn(shape, generator=generator, dtype=torch.float64) * 1e-6).abs()
    if odd:
        value[3], value[-8], truth[-7] = math.nan, math.inf, math.inf
    return Expected(value, truth, response, {"fp32": 1e-8}, serial=response * 2, rounding=1e-3)


@pytest.mark.parametrize("shape", [(5, 37, 8), (37, 40), (1480,)])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float8_e5m2])
@pytest.mark.parametrize("change", ["none", "noise", "one wrong", "NaN", "inf", "a row"])
def test_judged_by_blocks_or_at_once_it_is_the_same(
    dtype: torch.dtype, shape: tuple[int, ...], odd: bool, change: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    want = _floats(dtype, (1480,), odd)
    want = dataclasses.replace(
        want,
        **{n: getattr(want, n).reshape(shape) for n in ("value", "truth", "response", "serial")},
    )
    got = want.value.float().clone()
    if change == "noise":
        got = got * (1 + 1e-6 * torch.randn(got.shape, generator=torch.Generator().manual_seed(4)))
    elif change == "a row":
        got.reshape(-1)[800:840] *= -40
    elif change != "none":
        got.reshape(-1)[633] = {"one wrong": 30000.0, "NaN": math.nan, "inf": math.inf}[change]
    got = got.to(dtype)
    found = []
    for size in (1 << 30, 64, 8):
        monkeypatch.setattr(blocks, "_BLOCK", size)
        found.append(judge(got, want))
    whole, *others = found
    assert whole.passed == (change in ("none", "noise"))
    for verdict in others:
        close = _numbers(verdict) == pytest.approx(_numbers(whole), rel=1e-12, nan_ok=True)
        assert close and _others(verdict) == _others(whole)


def _numbers(verdict: OutputVerdict) -> list[float]:
    assert verdict.figures is not None and verdict.reference is not None
    figures = [*verdict.figures.model_dump().values(), *verdict.reference.model_dump().values()]
    worst = [verdict.worst_got, verdict.worst_expected]
    return [math.nan if x is None else x for x in (*figures, *worst, verdict.ratio_rows)]


def _others(verdict: OutputVerdict) -> dict[str, object]:
    left_out = {"figures", "reference", "worst_got", "worst_expected", "ratio_rows", "ratio_all"}
    return verdict.model_dump(exclude=left_out)
