"""Which gradients of the gated recurrence go in chunks on tensor cores, and what they are there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence import chunked_backward, explain, gated_recurrence

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
    reason="needs an NVIDIA GPU of compute capability 9.0 or later",
)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [64, 128, 192, 256])
def test_every_plan_fits_a_block(rows: int, transposed: bool) -> None:
    plan = chunked_backward.Plan("float", 1, transposed, 2, 65, 3, rows, 64, 1, 1, b"")
    assert plan.parts * plan.groups * 64 == rows and plan.chunks == 2 and plan.chains == 6
    blocks = 2 if plan.parts == 1 else 1  # of a processor
    assert blocks * (plan.shared + 1024) <= 228 * 1024


@pytest.mark.parametrize(
    ("chunks", "blocks", "slots"),
    [(32, 128, 264), (64, 32, 132), (256, 16, 132), (5, 8, 132), (1, 64, 264), (7, 1000, 264)],
)
def test_strips_fill_the_gpu_in_few_turns(chunks: int, blocks: int, slots: int) -> None:
    strips = chunked_backward._strips(chunks, blocks, slots)
    assert 1 <= strips <= chunks
    least = chunks * blocks / slots  # chunks that a place on the GPU takes one after the other
    turns = -(-blocks * strips // slots) * -(-chunks // strips)
    assert turns <= max(1.35 * least, 1.0) + 1


def call(steps: int, gates: str, key_dim: int, value_dim: int, batch: int = 2) -> dict[str, Any]:
    """Arguments of `gated_recurrence`: four heads of two key heads."""

    def made(*sizes: int) -> Tensor:
        return torch.randn(batch, steps, *sizes, device="cuda")

    given: dict[str, Any] = {"q": made(2, key_dim) / key_dim**0.5, "k": made(2, key_dim)}
    given |= {"v": made(4, value_dim)}
    given = {name: x.bfloat16() for name, x in given.items()}
    widths = {"k": ("gate_k", key_dim), "v": ("gate_v", value_dim), "h": ("gate_head",)}
    for letter in gates:
        name, *width = widths[letter]
        gate = torch.sigmoid(made(4, *width) + 2)
        given[name] = torch.where(gate < 0.7, gate - 0.7, gate) * (gate > 0.6)
    given["initial_state"] = torch.randn(batch, 4, key_dim, value_dim, device="cuda")
    return given


def gradients(given: dict[str, Any], **options: Any) -> list[Tensor]:
    """Of every argument, from one gradient of y and of the state for all dtypes and batches."""
    leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
    y, state = gated_recurrence(**leaves, return_state=True, **options)
    by = []
    for x in (y, state):
        generator = torch.Generator().manual_seed(1)
        one = torch.randn(3, *x.shape[1:], generator=generator)[: x.shape[0]].bfloat16()
        by.append(one.to(x.device, x.dtype))
    return list(torch.autograd.grad((y, state), list(leaves.values()), by))


SIZES = [(64, 64), (128, 128), (192, 64), (64, 256), (256, 128)]


@gpu
@needs_gpu
@pytest.mark.parametrize("gates", ["", "k", "v", "h", "kh", "vh"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gpu_gradients(gates: str, sizes: tuple[int, int]) -> None:
    for steps in (64, 331):
        torch.manual_seed(steps)
        assert_right(call(steps, gates, *sizes))


def assert_right(given: dict[str, Any]) -> None:
    """In chunks, and near float64."""
    assert "backward_chunks.cu" in explain(**given)
    wide = {name: x.double() for name, x in given.items()}
    for mine, true in zip(gradients(given), gradients(wide, impl="reference"), strict=True):
        assert (mine.double() - true).norm() <= 8e-3 * true.norm()


@gpu
@needs_gpu
@pytest.mark.parametrize("gates", ["k", "vh"])
def test_gpu_widths_between_multiples_of_64(gates: str) -> None:
    torch.manual_seed(2)
    assert_right(call(300, gates, 40, 72))


@gpu
@needs_gpu
@pytest.mark.parametrize("gates", ["k", "v", "h"])
def test_gpu_contracts(gates: str) -> None:
    """Batch-invariant, deterministic, in a graph, and with one head whose gates are large."""
    torch.manual_seed(3)
    given = call(200, gates, 128, 64, batch=3)
    by, again = gradients(given), gradients(given)
    alone = gradients({name: x[:1] for name, x in given.items()})
    gate = next(x for name, x in given.items() if name.startswith("gate"))
    gate[2, 50, 3] = 30.0
    large = gradients(given)
    for one, two, mine, other in zip(by, again, alone, large, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(mine, one[:1]) and torch.equal(other[:2], one[:2])
    wide = {name: x.double() for name, x in given.items()}
    for mine, true in zip(large, gradients(wide, impl="reference"), strict=True):
        assert (mine[2].double() - true[2]).norm() <= 8e-3 * true[2].norm()


@gpu
@needs_gpu
@pytest.mark.parametrize("sizes", [(64, 192), (128, 128), (192, 64)], ids=str)
@pytest.mark.parametrize("gates", ["k", "v"])
def test_gpu_chunks_may_share_a_block(
    gates: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many blocks there are depends on the batch and the GPU; results do not."""
    torch.manual_seed(4)
    given = call(600, gates, *sizes)
    found = []
    for strips in (10, 1, 3):
        monkeypatch.setattr(chunked_backward, "_strips", lambda *_, n=strips: n)
        found.append(gradients(given))
    for one, *others in zip(*found, strict=True):
        assert all(torch.equal(one, other) for other in others)


@gpu
@needs_gpu
def test_gpu_gradients_in_a_graph() -> None:
    given = call(130, "k", 64, 64)
    gradients(given)  # compiles the kernels
    graph = torch.cuda.CUDAGraph()
    leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
    by = torch.randn(2, 130, 4, 64, device="cuda").bfloat16()
    with torch.cuda.graph(graph):
        y = gated_recurrence(**leaves)
        captured = torch.autograd.grad(y, list(leaves.values()), by)
    y = gated_recurrence(**leaves)
    wanted = list(torch.autograd.grad(y, list(leaves.values()), by))
    for _ in range(3):
        for x in captured:
            x.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(captured, wanted, strict=True))
