"""What went wrong with gated recurrences in other libraries, by the issue that tells of it, where
no other test here covers it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence import gated_recurrence, gated_recurrence_step

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_properties(0).total_memory < 120e9,
    reason="needs an NVIDIA GPU with 120 GB",
)


def call(
    batch: int, steps: int, heads: int, key_dim: int, value_dim: int, device: str,
    dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Any]:  # fmt: skip
    """With a gate of keys below one, as models have it."""
    torch.manual_seed(0)

    def made(width: int) -> Tensor:
        return torch.randn(batch, steps, heads, width, device=device)

    q, k, v = (made(width).to(dtype) for width in (key_dim, key_dim, value_dim))
    gate = torch.exp(torch.nn.functional.logsigmoid(made(key_dim)) / 16)
    return {"q": q, "k": k, "v": v, "gate_k": gate, "scale": key_dim**-0.5}


def assert_right(given: dict[str, Any], bound: float = 6e-3) -> None:
    """y, the state and all gradients against float64."""

    def found(given: dict[str, Any], **options: Any) -> list[Tensor]:
        leaves = {
            n: x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
            for n, x in given.items()
        }
        y, state = gated_recurrence(**leaves, return_state=True, **options)
        generator = torch.Generator().manual_seed(1)
        by = [
            torch.randn(x.shape, generator=generator).bfloat16().to(x.device, x.dtype)
            for x in (y, state)
        ]
        asked = [x for x in leaves.values() if isinstance(x, Tensor) and x.requires_grad]
        return [y, state, *torch.autograd.grad((y, state), asked, by)]

    wide = {n: x.double() if isinstance(x, Tensor) else x for n, x in given.items()}
    if "cu_seqlens" in given:
        wide["cu_seqlens"] = given["cu_seqlens"]
    for mine, true in zip(found(given), found(wide, impl="reference"), strict=True):
        assert (mine.double() - true).norm() <= bound * true.norm()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((1, 64, 1, 64, 64), "fla#984: one chunk, and 64 x 64"),
        ((1, 70, 1, 33, 64), "fla#640: gradients with K from 33 to 64"),
        ((1, 70, 1, 56, 64), "fla#640"),
        ((1, 48, 1, 192, 384), "fla#734: K=192, V=384"),
        ((1, 20, 1, 256, 256), "fla#196: D=256"),
        ((1, 33, 2, 16, 8), "fla#22, sparkinfer#604: small heads, and T % 32 = 1"),
        ((1, 5, 16, 8, 8), "fla#88, vllm-ascend#11598: T <= 8, 16 heads"),
        ((1, 2, 1, 24, 24), "fla#1140: fewer steps than anything is divided into"),
        ((8, 4, 16, 9, 16), "fla#7: a larger batch"),
    ],
    ids=lambda x: x.split(":")[0] if isinstance(x, str) else str(x),
)
def test_sizes(sizes: tuple[int, ...], why: str, device: str) -> None:
    assert_right(call(*sizes, device=device))


@pytest.mark.parametrize("device", DEVICES)
def test_a_scale_of_the_integer_one(device: str) -> None:
    """fla#1262: a compiler that specialises the argument 1 went wrong."""
    given = call(1, 70, 1, 64, 64, device)
    assert_right({**given, "scale": 1})
    y = gated_recurrence(**{**given, "scale": 1})
    assert torch.equal(y, gated_recurrence(**{**given, "scale": 1.0}))


@pytest.mark.parametrize("device", DEVICES)
def test_padding_leaves_the_state_as_it_is(device: str) -> None:
    """fla#1272: padded steps have k = v = 0 and a gate of 1."""
    given = call(1, 40, 2, 64, 64, device)
    for name, value in (("k", 0), ("v", 0), ("gate_k", 1)):
        given[name][:, 10:25] = value
    rest = {
        n: torch.cat([x[:, :10], x[:, 25:]], 1) if isinstance(x, Tensor) else x
        for n, x in given.items()
    }
    state = gated_recurrence(**given, return_state=True)[1]
    want = gated_recurrence(**rest, return_state=True)[1]
    assert (state - want).norm() <= 4e-3 * want.norm()


@pytest.mark.parametrize("device", DEVICES)
def test_no_state_is_one_of_zeros_whatever_lies_in_memory(device: str) -> None:
    """vllm#51562: a stale state was used for a first chunk of one step."""
    given = call(1, 1, 2, 64, 64, device)
    stale = torch.full((64, 2, 64, 64), 2.0, device=device)
    del stale  # its memory may be what comes next
    y, state = gated_recurrence(**given, return_state=True)
    zeros = torch.zeros(1, 2, 64, 64, device=device)
    want = gated_recurrence(**given, initial_state=zeros, return_state=True)
    assert torch.equal(y, want[0]) and torch.equal(state, want[1])


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_a_first_training_step_are_finite(device: str) -> None:
    """mamba#352: NaN in the first step in bfloat16, with gates that start near 0."""
    given = call(2, 130, 2, 64, 64, device)
    given["gate_k"] = torch.sigmoid(torch.randn_like(given["gate_k"]) * 4 - 8)
    assert_right(given)


@pytest.mark.parametrize("device", DEVICES)
def test_more_sequences_than_a_grid_axis_has(device: str) -> None:
    """fla#1077: more than 65,535 sequences, most of them empty."""
    count = 70_000
    given = call(1, 90, 1, 8, 8, device, torch.float32)
    bounds = torch.full((count + 1,), 90, dtype=torch.int32)
    bounds[: count // 2] = 0
    bounds[count // 2] = 40
    y = gated_recurrence(**given, cu_seqlens=bounds.to(device))
    first, second = (
        gated_recurrence(**{n: x[:, s] if isinstance(x, Tensor) else x for n, x in given.items()})
        for s in (slice(0, 40), slice(40, 90))
    )
    want = torch.cat([first, second], 1)
    assert (y - want).abs().max() <= 2e-6 * want.abs().max()


@gpu
@needs_gpu
def test_gpu_long_sequences_stay_finite() -> None:
    """fla#122: H=1, T=43884, D=64."""
    given = call(1, 43_884, 1, 64, 64, "cuda")
    y, state = gated_recurrence(**given, return_state=True)
    assert torch.isfinite(y).all() and torch.isfinite(state).all()


@gpu
@needs_gpu
@pytest.mark.parametrize("with_gradients", [False, True])
def test_gpu_more_than_2_to_the_31_elements(with_gradients: bool) -> None:
    """fla#1080, fla#769, mamba#883: offsets of 32 bits. The last sequence is that of a batch of its
    own, to the bit."""
    batch, steps, heads = 16, 17_477, 64
    shape = (batch, steps, heads, 128)
    q, k, v = (torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    for x in (q, k, v):  # in pieces, since float32 of all would be 9 GB more
        for row in x:
            row.normal_()
    gate = torch.rand(batch, steps, heads, device="cuda") * 0.1 + 0.9
    given = {"q": q, "k": k, "v": v, "gate_head": gate, "scale": 128**-0.5}
    if not with_gradients:
        y = gated_recurrence(**given)
        alone = {n: x[-1:] if isinstance(x, Tensor) else x for n, x in given.items()}
        assert torch.equal(y[-1:], gated_recurrence(**alone))
        return
    del given["gate_head"]  # whose gradient would be 9 GB more
    del gate
    found = []
    for rows in (slice(None), slice(-1, None)):
        leaves = {
            n: x[rows].detach().requires_grad_() if isinstance(x, Tensor) else x
            for n, x in given.items()
        }
        y = gated_recurrence(**leaves)
        by = torch.autograd.grad(y, [leaves[n] for n in "qkv"], v[rows])
        found.append([x[-1:].clone() for x in by])
        del leaves, y, by
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@gpu
@needs_gpu
def test_gpu_two_calls_of_a_graph_of_the_compiler_keep_their_outputs() -> None:
    """fla#779: mode="reduce-overhead" and two calls."""
    given = call(1, 70, 1, 64, 64, "cuda")

    def model(gate: Tensor) -> Tensor:
        return gated_recurrence(**{**given, "gate_k": gate}) * 2

    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    wanted = model(given["gate_k"])
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        got = compiled(given["gate_k"]).clone()
        again = compiled(given["gate_k"] * 0.5).clone()
        assert torch.equal(got, wanted) and not torch.equal(again, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_the_step_reads_columns_of_a_fused_projection(device: str) -> None:
    """LightLLM#1349: q, k, v as slices, with no copy for every step."""
    fused = torch.randn(2, 2 * (64 + 64 + 64 + 64), device=device)
    q, k, v, gate = (x.unflatten(-1, (2, 64)) for x in fused.split([128] * 4, -1))
    state = torch.randn(2, 2, 64, 64, device=device)
    copied = state.clone()
    y = gated_recurrence_step(q, k, v, state, gate_k=gate)
    parts = [x.contiguous() for x in (q, k, v)]
    want = gated_recurrence_step(*parts, copied, gate_k=gate.contiguous())
    assert torch.equal(y, want) and torch.equal(state, copied)
