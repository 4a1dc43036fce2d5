"""The CUDA kernels of the gated recurrence under the emulator: every form, its gradients, and its
contracts bit for bit; no race, no read of what was not written, nothing out of bounds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.gated_recurrence import (
    config,
    cuda,
    cuda_backward,
    cuda_step,
    reference,
)
from kernelproof.ops.gated_recurrence.gradients import from_sums


def emulated(run: Any) -> Any:
    """The result; any finding is a failure."""
    recorder = Recorder()
    with standing_in(recorder):
        out = run()
    results = recorder.taken()
    assert results and [str(f) for r in results for f in r.findings] == []
    return out


class Call:
    """Arguments of one call, and what comes of them."""

    def __init__(
        self,
        steps: int,
        key_heads: int = 1,
        heads: int = 1,
        key_dim: int = 5,
        value_dim: int = 7,
        gates: str = "k",
        *,
        batch: int = 1,
        log: bool = False,
        lengths: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        def gate(*width: int) -> Tensor:
            x = torch.randn(batch, steps, heads, *width)
            return (-x.abs() / 2 if log else torch.tanh(x) * (x.abs() > 0.13)).to(dtype)

        q, k = (torch.randn(batch, steps, key_heads, key_dim).to(dtype) for _ in range(2))
        widths = {"k": (key_dim,), "v": (value_dim,), "h": ()}
        gated = [gate(*w) if letter in gates else None for letter, w in widths.items()]
        v = torch.randn(batch, steps, heads, value_dim).to(dtype)
        self.tensors: list[Tensor | None] = [q, k, v, *gated]
        count = batch if lengths is None else len(lengths)
        self.initial = torch.randn(count, heads, key_dim, value_dim)
        self.log = log
        self.bounds = None
        if lengths is not None:
            self.bounds = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        self.weights = torch.randn(v.shape).to(dtype), torch.randn(self.initial.shape)

    def options(self) -> dict[str, Any]:
        return {"log_gates": self.log, "cu_seqlens": self.bounds}

    def forward(self) -> tuple[Tensor, Tensor]:
        launch = cuda.launch
        return emulated(  # type: ignore[no-any-return]
            lambda: launch(*self.tensors, 0.5, self.initial, True, **self.options())
        )

    def backward(self) -> list[Tensor]:
        q, _, v, *gates = self.tensors
        sums = emulated(
            lambda: cuda_backward.launch_backward(
                *self.weights, *self.tensors, 0.5, self.initial, **self.options()
            )
        )
        return [x for x in from_sums(sums, q, v, *gates, self.log) if x is not None]

    def exact(self) -> list[Tensor]:
        """y, the state and the gradients in float64."""
        leaves = [
            None if x is None else x.double().requires_grad_()
            for x in (*self.tensors, self.initial)
        ]
        outputs = reference.run(*leaves[:6], self.log, 0.5, leaves[6], self.bounds)
        by = [x for x in leaves if x is not None]
        weights = [w.double() for w in self.weights]
        return [*outputs, *torch.autograd.grad(outputs, by, weights)]

    def part(self, steps: slice, initial: Tensor | None = None) -> Call:
        """The same over some of the steps."""
        other = object.__new__(Call)
        other.__dict__ |= self.__dict__
        other.tensors = [None if x is None else x[:, steps] for x in self.tensors]
        if initial is not None:
            other.initial = initial
        return other


def distance(got: Tensor, want: Tensor) -> float:
    assert got.shape == want.shape
    error = (got.double() - want).abs().max() / want.abs().max().clamp(min=1e-30)
    return float(error.detach())


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


@pytest.mark.parametrize(
    "form",
    [
        # Few instances of the backward kernel: each takes a second to compile.
        {"steps": 20, "heads": 2, "gates": "kvh", "batch": 2},
        {"steps": 75, "gates": "kvh", "lengths": (0, 0, 7, 68, 0)},
        {"steps": 4, "key_dim": 2, "value_dim": 1, "gates": "kvh", "lengths": (1, 1, 1, 1)},
        {"steps": 18, "key_heads": 2, "heads": 4, "key_dim": 36, "value_dim": 12, "log": True},
        {"steps": 9, "heads": 2, "log": True, "lengths": (9,)},
        {"steps": 3, "key_dim": 33, "value_dim": 70, "gates": "kv"},
        {"steps": 6, "gates": "v", "dtype": torch.bfloat16},
        {"steps": 10, "gates": "h", "dtype": torch.float16},
    ],
    ids=str,
)
def test_forms_and_gradients(form: dict[str, Any]) -> None:
    call = Call(**form)
    y, state, *wanted = call.exact()
    eps = torch.finfo(call.weights[0].dtype).eps
    got = call.forward()
    assert distance(got[0], y) <= max(2 * eps, 2e-6) and distance(got[1], state) <= 2e-6
    for g, w in zip(call.backward(), wanted, strict=True):
        assert distance(g, w) <= max(eps, 2e-6)


def test_contracts() -> None:
    """Causal, batch-invariant, deterministic."""
    call = Call(40, heads=2, gates="kvh", batch=2)
    (y, state), by = call.forward(), call.backward()
    later = call.part(slice(0, 40))
    later.tensors = [None if x is None else x.clone() for x in later.tensors]
    for x in later.tensors:
        if x is not None:
            x[:, 25:] = 1e9
    assert torch.equal(later.forward()[0][:, :25], y[:, :25])
    alone = call.part(slice(0, 40), call.initial[1:])
    alone.tensors = [None if x is None else x[1:] for x in alone.tensors]
    alone.weights = call.weights[0][1:], call.weights[1][1:]
    got = alone.forward()
    assert torch.equal(got[0], y[1:]) and torch.equal(got[1], state[1:])
    for mine, all_ in zip(alone.backward(), by, strict=True):
        assert torch.equal(mine, all_[1:])
    assert all(torch.equal(a, b) for a, b in zip(call.backward(), by, strict=True))


@pytest.mark.parametrize(
    ("sizes", "gates", "log", "sliced"),
    [((70, 24), "kvh", False, False), ((5, 7), "v", True, False), ((33, 132), "h", False, True)],
    ids=str,
)
def test_step_in_place(sizes: tuple[int, int], gates: str, log: bool, sliced: bool) -> None:
    """Steps after steps agree with the whole; the memory around a state that is a view is left."""
    key_dim, value_dim = sizes
    call = Call(3, 1, 2, key_dim, value_dim, gates, batch=2, log=log)
    wanted, last, *_ = call.exact()
    space = torch.full((2, 2, key_dim + 1, value_dim + 3), 7.0)
    state = space[:, :, :key_dim, 1 : value_dim + 1] if sliced else call.initial.clone()
    state.copy_(call.initial)
    before = space.clone()
    for t in range(3):
        one = [None if x is None else x[:, t : t + 1] for x in call.tensors]
        y = emulated(lambda one=one: cuda.launch_step(*one, 0.5, state, log))
        assert distance(y, wanted[:, t : t + 1]) <= 2e-6
    assert distance(state, last) <= 2e-6
    if sliced:
        before[:, :, :key_dim, 1 : value_dim + 1] = state
    assert torch.equal(space, before)


@pytest.mark.parametrize(("key_dim", "steps", "span"), [(4, 200, 128), (24, 136, 64)])
def test_segments_that_end_with_a_span_are_the_whole(key_dim: int, steps: int, span: int) -> None:
    """The split of time is one for all lengths above 64."""
    call = Call(steps, key_dim=key_dim, value_dim=4)
    chosen = config.choose(torch.float32, torch.float32, key_dim, 4, steps, 1, 1, True, 132)
    assert chosen.segments * chosen.steps == span
    y, state = call.forward()
    first, carried = call.part(slice(0, span)).forward()
    second, last = call.part(slice(span, steps), carried).forward()
    assert torch.equal(torch.cat((first, second), 1), y) and torch.equal(last, state)


def test_packed_sequences_do_not_see_each_other() -> None:
    call = Call(40, key_dim=6, value_dim=8, gates="kvh", lengths=(30, 0, 10))
    (y, state), by = call.forward(), call.backward()
    alone = call.part(slice(30, 40), call.initial[2:])
    alone.bounds = torch.tensor([0, 10], dtype=torch.int64)
    alone.weights = call.weights[0][:, 30:], call.weights[1][2:]
    got = alone.forward()
    assert torch.equal(got[0], y[:, 30:]) and torch.equal(got[1], state[2:])
    for mine, all_ in zip(alone.backward()[:-1], by[:-1], strict=True):
        assert torch.equal(mine, all_[:, 30:])


def test_bounds_may_have_a_stride() -> None:
    call = Call(12, gates="k", lengths=(5, 7))
    (y, state), by = call.forward(), call.backward()
    wide = torch.full((3, 4), 99, dtype=torch.int32)
    wide[:, 1] = torch.tensor([0, 5, 12])
    call.bounds = wide[:, 1]
    got, of_got = call.forward(), call.backward()
    assert torch.equal(got[0], y) and torch.equal(got[1], state)
    assert all(torch.equal(a, b) for a, b in zip(of_got, by, strict=True))


@pytest.mark.parametrize("wrong", [[3, -8, 40], [9, 2, 12]], ids=str)
def test_bounds_that_are_wrong_stay_within_the_tensors(wrong: list[int]) -> None:
    """They are known to the device alone: memory outside must not be touched."""
    call = Call(12, gates="kvh", lengths=(5, 7))
    call.bounds = torch.tensor(wrong, dtype=torch.int64)
    for launch, first in ((cuda.launch, ()), (cuda_backward.launch_backward, call.weights)):
        recorder = Recorder()
        with standing_in(recorder):
            launch(*first, *call.tensors, 0.5, call.initial, **call.options())
        (result,) = recorder.taken()
        assert "out of bounds" not in {finding.kind for finding in result.findings}


def test_gates_that_overflow_a_gradient_meet_zeros() -> None:
    call = Call(24, gates="kvh")
    q, k, v, gate, *_ = call.tensors
    assert q is not None and k is not None and v is not None and gate is not None
    call.initial.zero_()
    k[:, :15], v[:, :15], gate[:, :15], gate[:, 15] = 0, 0, 1e30, 0
    assert all(torch.isfinite(x).all() for x in (*call.forward(), *call.backward()))


def test_sources_compile() -> None:
    float_, half = torch.float32, torch.bfloat16
    chosen = config.choose(half, float_, 64, 64, 1 << 20, 8, 5, True, 132)
    assert chosen.kernel("packed").compile("sm_90a")
    alone = "float, float, 3, 4, 32"
    assert cuda_step._kernel(alone).compile("sm_90a")
    kernel = cuda_backward._kernel(half, float_, True, 7, 4, "gradients")
    code, _, said = kernel.compile_verbose("sm_90a")
    assert code and "0 bytes spill stores" in said
