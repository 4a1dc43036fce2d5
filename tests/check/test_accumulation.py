"""The noise of serial sums is that of serial sums."""

from __future__ import annotations

import pytest
import torch

from kernelproof.check.accumulation import Serial
from kernelproof.check.oracle import float64

UNIT = 2.0**-24


def serial_sum(x: torch.Tensor) -> torch.Tensor:
    """Along the last axis, one term after another, in fp32."""
    total = torch.zeros(x.shape[:-1])
    for term in x.unbind(-1):
        total = total + term
    return total


def rms(x: torch.Tensor) -> float:
    return float(x.double().square().mean().sqrt())


def noise(function, *inputs: torch.Tensor, equal: bool = False) -> float:
    """Size of the noise that `Serial` gives to a function of float64 inputs."""
    wide = [x.double() for x in inputs]
    with float64(serial=Serial(UNIT, 3, equal)):
        noisy = function(*wide)
    return rms(noisy - function(*wide))


@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize("terms", [64, 4096])
def test_a_serial_sum_errs_by_its_size(terms: int, shift: float) -> None:
    x = torch.randn(500, terms, generator=torch.Generator().manual_seed(1)) + shift
    error = rms(serial_sum(x).double() - x.double().sum(-1))
    assert 0.5 < noise(lambda y: y.sum(-1), x) / error < 2.5


def test_equal_terms_err_with_their_number() -> None:
    x = (1 + torch.rand(500, 1, generator=torch.Generator().manual_seed(1))).expand(-1, 4096)
    error = rms(serial_sum(x).double() - x.double().sum(-1))
    assert error > 4 * noise(lambda y: y.sum(-1), x)
    assert error < noise(lambda y: y.sum(-1), x, equal=True)


def test_products_cumulative_sums_means_and_softmax() -> None:
    draw = torch.Generator().manual_seed(1)
    a, b = torch.randn(40, 1024, generator=draw), torch.randn(1024, 30, generator=draw)
    product = serial_sum(a.unsqueeze(1) * b.T)
    error = rms(product.double() - a.double() @ b.double())
    assert 0.5 < noise(torch.matmul, a, b) / error < 2.5
    added = noise(torch.addmm, torch.zeros(40, 30), a, b)
    assert 0.5 < added / error < 2.5
    scan = torch.stack([serial_sum(a[:, : n + 1]) for n in range(0, 1024, 64)])
    exact = a.double().cumsum(1)[:, ::64].T
    assert 0.4 < noise(lambda x: x.cumsum(1)[:, ::64], a) / rms(scan.double() - exact) < 2.5
    error = rms(serial_sum(a).double() / 1024 - a.double().mean(1))
    assert 0.5 < noise(lambda x: x.mean(1), a) / error < 2.5
    weights = a.exp() / serial_sum(a.exp()).unsqueeze(1)
    error = rms(weights.double() - a.double().softmax(1))
    assert 0.5 < noise(lambda x: x.softmax(1), a) / error < 4


def test_what_adds_nothing_gets_no_noise() -> None:
    x = torch.randn(30, 30, generator=torch.Generator().manual_seed(1))
    assert noise(lambda y: y.exp().clamp(0, 1).t() * 3 + 1, x) == 0
    # A sum of one term is that term: its noise is that of one rounding at most.
    assert noise(lambda y: y.sum(-1), x[:, :1]) < UNIT * rms(x[:, :1])


def test_the_noise_goes_through_what_follows() -> None:
    x = torch.randn(200, 4096, generator=torch.Generator().manual_seed(1))
    alone = noise(lambda y: y.sum(-1), x)
    assert 900 < noise(lambda y: 1000 * y.sum(-1), x) / alone < 1100
