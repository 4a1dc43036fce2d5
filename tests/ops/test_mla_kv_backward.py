"""When the gradients of mla_kv on CUDA are formed by its own kernels, and that they are right."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from kernelproof.ops.mla_kv import cuda, cuda_backward, mla_kv
from kernelproof.ops.mla_kv.cuda_steps import H200

FOUNDING = (384, 256, 48, 4, 32)


def operands(
    tokens: int, model: int, rank: int, heads: int, dim: int, device: str = "cpu"
) -> list[Tensor]:
    """grad_k and grad_v, halves of one tensor, then hidden and the weights."""
    grad = torch.randn(tokens, 2, heads, dim, device=device)
    shapes = ((tokens, model), (model, rank), (rank, heads * dim), (rank, heads * dim))
    return [grad[:, 0], grad[:, 1], *(torch.randn(s, device=device) for s in shapes)]


def fits(*given: Tensor) -> bool:
    with mock.patch.object(cuda, "device_facts", lambda index: H200):
        return cuda_backward.fits(*given)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (FOUNDING, True),
        ((8, 128, 64, 1, 64), True),
        ((5000, 256, 48, 4, 32), False),  # matrix products are faster
        ((384, 250, 48, 4, 32), False),  # rows of 16 bytes
        ((384, 256, 46, 4, 32), False),
        ((384, 256, 48, 1, 24), False),
        ((384, 2048, 512, 16, 128), False),  # the weights are too large
        ((0, 256, 48, 4, 32), False),
    ],
)
def test_sizes(sizes: tuple[int, int, int, int, int], expected: bool) -> None:
    assert fits(*operands(*sizes)) is expected


def test_strides_and_dtypes() -> None:
    grad_k, grad_v, hidden, *weights = operands(*FOUNDING)
    batched = [t.unflatten(0, (4, 96)) for t in (grad_k, grad_v, hidden)]
    assert fits(*batched, *weights)
    wide = torch.randn(384, 512)
    assert fits(grad_k, grad_v, wide[:, 256:], *weights)
    assert not fits(grad_k, grad_v, wide[:, 1:257], *weights)  # starts within 16 bytes
    assert not fits(grad_k, grad_v, wide[:, ::2], *weights)
    assert not fits(torch.ones(()).expand(grad_k.shape), grad_v, hidden, *weights)
    turned = weights[0].t().contiguous().t()
    assert not fits(grad_k, grad_v, hidden, turned, *weights[1:])
    assert not fits(*(t.double() for t in (grad_k, grad_v, hidden, *weights)))


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [FOUNDING, (8, 128, 64, 1, 64), (1000, 64, 16, 2, 8)], ids=str)
def test_gpu_gradients(sizes: tuple[int, int, int, int, int]) -> None:
    heads = sizes[3]
    _, _, *given = operands(*sizes, device="cuda")
    leaves = [t.requires_grad_() for t in given]
    out = mla_kv(*leaves, kv_heads=heads)
    grad = torch.randn_like(out)
    with mock.patch.object(cuda_backward, "launch", wraps=cuda_backward.launch) as launched:
        found = torch.autograd.grad(out, leaves, grad)
    assert launched.call_count == 1
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = mla_kv(*wide, kv_heads=heads, impl="reference")
    for mine, want in zip(found, torch.autograd.grad(exact, wide, grad.double()), strict=True):
        assert mine.shape == want.shape
        assert (mine.double() - want).abs().max() <= 2e-6 * want.abs().max()
