"""Calls of the gated recurrence whose form has been seen: the launches that are remembered,
emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from remembered_launches import Bound, remembered
from torch import Tensor

from kernelproof.ops.gated_recurrence import (
    chunk_choice,
    chunked,
    cuda,
    cuda_quick,
    gated_recurrence,
    reference,
)
from kernelproof.ops.gated_recurrence.call import Call

Tensors = list[Tensor | None]
# Of rms, against float64: y in float32, and in bfloat16 from chunks of 16 steps.
BOUND = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bound]]:
    """What is remembered while emulated launches count as real ones."""
    from kernelproof.emulate.standin import Recorder, standing_in

    found = remembered(monkeypatch, cuda_quick)
    chunked._plan.cache_clear()
    recorder = Recorder(hopper=True)
    with standing_in(recorder):
        yield found
    chunked._plan.cache_clear()
    results = recorder.taken()
    assert results and [str(f) for r in results for f in r.findings] == []


def made(sizes: dict[str, Any], seed: int) -> tuple[Tensors, Tensor | None, Tensor | None]:
    """q, k, v and the gates; the initial state; ``cu_seqlens``."""
    torch.manual_seed(seed)
    options = {"batch": 1, "steps": 5, "heads": 2, "dims": (5, 7), "gates": "v", "state": False}
    b, t, h, (key_dim, value_dim), gates, state, lengths, dtype = (
        (options | {"lengths": None, "dtype": torch.float32} | sizes)[name]
        for name in ("batch", "steps", "heads", "dims", "gates", "state", "lengths", "dtype")
    )
    q, k = (torch.randn(b, t, h, key_dim).to(dtype) for _ in range(2))
    given: Tensors = [q, k, torch.randn(b, t, h, value_dim).to(dtype)]
    for letter, width in (("k", (key_dim,)), ("v", (value_dim,)), ("h", ())):
        gate = torch.tanh(torch.randn(b, t, h, *width))
        given.append(gate if letter in gates else None)
    bounds = None
    if lengths is not None:
        bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    n = b if lengths is None else len(lengths)
    return given, torch.randn(n, h, key_dim, value_dim) if state else None, bounds


@pytest.mark.parametrize(
    ("sizes", "with_state", "kernels"),
    [
        ({}, False, ["contiguous"]),
        ({"steps": 1, "batch": 2}, True, ["contiguous"]),
        ({"gates": "kh", "state": True}, False, ["contiguous"]),
        ({"gates": "", "lengths": (2, 0, 3), "state": True}, True, ["packed"]),
        (
            {"steps": 40, "heads": 1, "dims": (64, 64), "dtype": torch.bfloat16}, True,
            ["chunked", "chunked"],
        ),
        (
            {"steps": 80, "heads": 1, "dims": (256, 64), "gates": "k", "dtype": torch.bfloat16},
            False, ["wide_keys", "wide", "wide"],
        ),
    ],
    ids=str,
)  # fmt: skip
def test_the_second_call_of_a_form(
    bound: list[Bound], sizes: dict[str, Any], with_state: bool, kernels: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With other tensors: right, and by the remembered launches."""
    monkeypatch.setattr(chunked, "_FEWEST_STEPS", 32)
    monkeypatch.setattr(chunk_choice, "divided", lambda *of: (2, max(32, of[2]), of[2]))
    for seed in (0, 1):
        given, state, cu_seqlens = made(sizes, seed)
        key = cuda_quick.key_of(given[0], [*given[1:], state, cu_seqlens], False, 0.5, with_state)  # type: ignore[arg-type]
        tensors = [t for t in (*given, state, cu_seqlens) if t is not None]
        got: Any = cuda_quick.quick(key, tensors)
        if seed == 0:
            assert got is None
            call = Call(*given, state, None, False, cu_seqlens)  # type: ignore[arg-type]
            cuda_quick.keep(key, tensors, call, 0.5, with_state)
            continue
        wide = [None if t is None else t.double() for t in given]
        start = None if state is None else state.double()
        true = reference.run(*wide, False, 0.5, start, cu_seqlens)  # type: ignore[arg-type]
        for mine, exact in zip(got if with_state else (got,), true, strict=False):
            assert mine.stride() == torch.empty(exact.shape).stride()
            assert (mine.double() - exact).norm() <= BOUND[given[2].dtype] * exact.norm()  # type: ignore[union-attr]
    assert [b.kernel.name.split("<")[0] for b in bound] == kernels
    assert [b.calls for b in bound] == [1] * len(kernels)


@pytest.mark.parametrize("gates", ["", "kvh"])
def test_the_second_step_of_a_form(bound: list[Bound], gates: str) -> None:
    for seed in (0, 1):
        given, state, _ = made({"steps": 1, "batch": 3, "gates": gates, "state": True}, seed)
        assert state is not None
        steps = [None if t is None else t[:, 0] for t in given]
        key = cuda_quick.key_of(steps[0], [*steps[1:], state], False, 0.5, None)  # type: ignore[arg-type]
        tensors = [t for t in (*steps, state) if t is not None]
        wide = [None if t is None else t.double() for t in given]
        true = reference.run(*wide, False, 0.5, state.double())  # type: ignore[arg-type]
        got = cuda_quick.quick(key, tensors)
        if seed == 0:
            assert got is None
            cuda_quick.keep(key, tensors, Call(*steps, state), 0.5, None)  # type: ignore[arg-type]
            continue
        assert isinstance(got, Tensor) and got.shape == given[2].shape[:1] + given[2].shape[2:]  # type: ignore[union-attr]
        for mine, exact in zip((got.unsqueeze(1), state), true, strict=True):
            assert (mine.double() - exact).norm() <= 2e-6 * exact.norm()
    assert [b.calls for b in bound] == [1]


def test_what_is_not_remembered(bound: list[Bound]) -> None:
    """Nothing to write, rows beyond one launch, bounds that are copied, and odd addresses."""
    for sizes in ({"steps": 0}, {"dims": (0, 7)}, {"dims": (1025, 1)}):
        given, _, _ = made(sizes, 0)
        tensors = [t for t in given if t is not None]
        key = cuda_quick.key_of(tensors[0], [*given[1:], None, None], False, 1.0, False)
        cuda_quick.keep(key, tensors, Call(*given), 1.0, False)  # type: ignore[arg-type]
        assert cuda_quick.quick(key, tensors) is None and not bound
    q = torch.randn(1, 5, 2, 6)
    key = cuda_quick.key_of(q, [q, q, None, q, None, None, None], False, 1.0, False)
    cuda_quick.keep(key, [q, q, q, q], Call(q, q, q, None, q), 1.0, False)
    assert cuda_quick.quick(key, [q, q, q, q]) is None and not bound
    given, _, _ = made({}, 0)
    tensors = [t for t in given if t is not None]
    key = cuda_quick.key_of(tensors[0], [*given[1:], None, None], False, 1.0, False)
    cuda_quick.keep(key, tensors, Call(*given), 1.0, False)  # type: ignore[arg-type]
    assert cuda_quick.quick(key, tensors) is not None
    for i, t in enumerate(tensors):
        moved = torch.empty(t.numel() + 1)[1:].view(t.shape).copy_(t)
        assert cuda_quick.quick(key, [*tensors[:i], moved, *tensors[i + 1 :]]) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("steps", [40, 128, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gpu_first_and_further_calls_agree(steps: int, dtype: torch.dtype) -> None:
    """Bit for bit, with gradients asked for in between, on a side stream and in a graph."""
    torch.manual_seed(0)
    shape = (2, steps, 4, 64)
    given = [torch.randn(shape, device="cuda").to(dtype) for _ in range(3)]
    gate = torch.sigmoid(torch.randn(shape, device="cuda"))

    def call(with_state: bool = True) -> Any:
        return gated_recurrence(*given, gate_v=gate, return_state=with_state)

    want = cuda.launch(*given, gate_v=gate, with_state=True)
    for _ in range(3):
        y, state = call()
        assert torch.equal(y, want[0]) and torch.equal(state, want[1])
        assert torch.equal(call(False), want[0])
        given[0].requires_grad_()
        tracked = call(False)
        assert tracked.requires_grad and torch.equal(tracked, want[0])
        given[0].requires_grad_(False)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10_000_000)
        other = call(False)
    side.synchronize()
    assert torch.equal(other, want[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(False)
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, want[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_first_and_further_steps_agree() -> None:
    from kernelproof.ops.gated_recurrence import gated_recurrence_step

    torch.manual_seed(0)
    q, k, v, g = (torch.randn(3, 2, 24, device="cuda") for _ in range(4))
    start = torch.randn(3, 2, 24, 24, device="cuda")
    found = []
    for _ in range(3):
        state = start.clone()
        version = state._version
        found.append((gated_recurrence_step(q, k, v, state, gate_v=g), state))
        assert state._version > version
    for y, state in found[1:]:
        assert torch.equal(y, found[0][0]) and torch.equal(state, found[0][1])
