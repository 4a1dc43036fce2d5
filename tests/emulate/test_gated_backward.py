"""Gradients in chunks on tensor cores under the emulator: values against float64 over families of
gates, contracts bit for bit, no race and no read of what was not written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.gated_recurrence import chunked_backward, cuda_backward, reference
from kernelproof.ops.gated_recurrence.call import Call as Inputs
from kernelproof.ops.gated_recurrence.gradients import from_sums

FAMILIES = {
    "signed": torch.tanh,
    "zeros": lambda x: torch.sigmoid(x) * (x > -1.6),
    "slow": lambda x: torch.exp(torch.nn.functional.logsigmoid(x) / 16),
    "above_one": lambda x: 0.8 + 0.4 * torch.sigmoid(x),
}
# Of root mean squares: operands are rounded to bfloat16, and so are gradients.
BOUND = 6e-3
Tensors = list[Tensor | None]


class Call:
    """Arguments of one call: q, k, v, three gates; and what its gradients start from."""

    def __init__(
        self,
        gates: str,
        steps: int = 70,
        family: str = "signed",
        *,
        sizes: tuple[int, int] = (64, 64),
        batch: int = 1,
        heads: int = 1,
        key_heads: int = 1,
        log: bool = False,
        gate_dtype: torch.dtype = torch.float32,
        states: bool = True,
    ) -> None:
        key_dim, value_dim = sizes
        q, k = (torch.randn(batch, steps, key_heads, key_dim).bfloat16() for _ in range(2))
        self.tensors: Tensors = [q, k, torch.randn(batch, steps, heads, value_dim).bfloat16()]
        for letter, width in (("k", (key_dim,)), ("v", (value_dim,)), ("h", ())):
            gate = FAMILIES[family](torch.randn(batch, steps, heads, *width))
            gate = (gate.abs() + 1e-3).log() if log else gate
            self.tensors.append(gate.to(gate_dtype) if letter in gates else None)
        shape = (batch, heads, key_dim, value_dim)
        self.initial, self.last = (torch.randn(shape) if states else None for _ in range(2))
        self.grad = torch.randn(batch, steps, heads, value_dim).bfloat16()
        self.log = log

    def run(self) -> list[Tensor | None]:
        """Gradients by q, k, v, the gates and the initial state; any finding is a failure."""
        recorder = Recorder(hopper=True)
        q, _, v, *gates = self.tensors
        with standing_in(recorder):
            given = Inputs(*self.tensors, self.initial, self.last, self.log)  # type: ignore[arg-type]
            assert chunked_backward.plan(self.grad, given) is not None
            sums = cuda_backward.launch_backward(
                self.grad, self.last, *self.tensors, 0.5, self.initial, log_gates=self.log
            )
        results = recorder.taken()
        assert results and [str(f) for r in results for f in r.findings] == []
        return from_sums(sums, q, v, *gates, self.log)

    def exact(self) -> list[Tensor | None]:
        leaves = [
            None if x is None else x.double().requires_grad_()
            for x in (*self.tensors, self.initial)
        ]
        y, last = reference.run(*leaves[:6], self.log, 0.5, leaves[6], None)
        outputs, by = [y], [self.grad.double()]
        if self.last is not None:
            outputs, by = [y, last], [*by, self.last.double()]
        got = iter(torch.autograd.grad(outputs, [x for x in leaves if x is not None], by))
        return [None if x is None else next(got) for x in leaves]


def assert_close(got: list[Tensor | None], want: list[Tensor | None], bound: float) -> None:
    for mine, true in zip(got, want, strict=True):
        assert (mine is None) == (true is None)
        if mine is not None and true is not None:
            assert (mine.double() - true).norm() <= bound * true.norm()


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that take two chunks, and ones that take a chunk less than others."""
    torch.manual_seed(5)
    monkeypatch.setattr(chunked_backward, "_strips", lambda chunks, *_: (chunks + 1) // 2)
    monkeypatch.setattr(chunked_backward, "_FEWEST_STEPS_COPIED", 66)


@pytest.mark.parametrize(
    "form",
    [
        # Few instances of the kernels: each takes seconds to compile.
        {"gates": "k", "steps": 150, "family": "slow"},
        {"gates": "k", "family": "zeros", "sizes": (128, 128), "heads": 2, "key_heads": 1},
        {"gates": "v", "steps": 100, "family": "above_one", "batch": 2},
        {"gates": "", "steps": 64, "states": False},
        {"gates": "vh", "family": "slow", "sizes": (64, 192), "log": True, "steps": 66},
    ],
    ids=str,
)
def test_gradients(form: dict[str, Any]) -> None:
    call = Call(**form)
    assert_close(call.run(), call.exact(), BOUND)


def test_gates_of_zero_and_below_have_their_gradient() -> None:
    """The gradient by the logarithm has no value there."""
    call = Call("k", 64, "slow", states=False)
    gate = call.tensors[3]
    assert gate is not None
    gate[:, 20:40, :, ::2] = 0
    gate[:, 20:40, :, 1::2] *= -1
    got, want = call.run()[3], call.exact()[3]
    assert got is not None and want is not None
    for part in (slice(0, None, 2), slice(1, None, 2)):
        mine, true = got[:, 20:40, :, part].double(), want[:, 20:40, :, part]
        assert true.norm() > 1 and (mine - true).norm() <= BOUND * true.norm()


def test_heads_with_large_gates_are_left_to_the_general_kernel() -> None:
    """Others are not touched by that, to the bit."""
    call = Call("v", 66, heads=2)
    before = call.run()
    gate = call.tensors[4]
    assert gate is not None
    gate[:, 30, 1, 7] = 40.0
    got = call.run()
    assert_close(got, call.exact(), BOUND)
    for mine, old in zip(got[2:6], before[2:6], strict=True):
        if mine is not None and old is not None:
            assert torch.equal(mine[:, :, 0], old[:, :, 0])


def test_contracts() -> None:
    """Batch-invariant and deterministic."""
    call = Call("k", 66, batch=2)
    by, again = call.run(), call.run()
    alone = object.__new__(Call)
    alone.__dict__ |= call.__dict__
    alone.tensors = [None if x is None else x[1:] for x in call.tensors]
    assert call.initial is not None and call.last is not None
    alone.initial, alone.last, alone.grad = call.initial[1:], call.last[1:], call.grad[1:]
    for one, two, mine in zip(by, again, alone.run(), strict=True):
        if one is not None and two is not None and mine is not None:
            assert torch.equal(one, two) and torch.equal(mine, one[1:])


@pytest.mark.parametrize(("end", "gate_of"), [("first", 1.8), ("first", 16.0), ("last", 1.8)])
def test_gates_that_overflow_meet_zeros(end: str, gate_of: float) -> None:
    """Gradients by states, or states, leave the range of float where they count for nothing: within
    a chunk (which the general kernel has to take), or over chunks."""
    call = Call("k", 260, states=False)
    q, k, v, gate, *_ = call.tensors
    assert q is not None and k is not None and v is not None and gate is not None
    steps = slice(0, 200) if end == "first" else slice(60, 260)
    gate[:, steps] = gate_of
    for x in (k, v) if end == "first" else (q, call.grad):
        x[:, steps] = 0
    assert_close(call.run(), call.exact(), BOUND)


def test_strides() -> None:
    """Columns of a fused projection, and a gate that all steps share."""
    call = Call("k", 66, heads=2, key_heads=2)
    q, k, v, gate, *_ = call.tensors
    assert q is not None and k is not None and v is not None and gate is not None
    fused = torch.cat([x.flatten(2) for x in (q, k, v)], -1).split([128, 128, 128], -1)
    call.tensors[:4] = [
        *(x.unflatten(-1, (2, 64)) for x in fused), gate[:, :1].expand(gate.shape)
    ]  # fmt: skip
    assert_close(call.run(), call.exact(), BOUND)


@pytest.mark.parametrize("change", ["float32", "packed", "short", "two gates", "few of 40"])
def test_other_calls_are_left_to_the_general_kernel(change: str) -> None:
    steps = {"short": 20, "few of 40": 65}.get(change, 66)
    call = Call("kv" if change == "two gates" else "k", steps)
    tensors, grad, bounds = call.tensors, call.grad, None
    if change == "float32":
        tensors = [None if x is None else x.float() for x in tensors]
        grad = grad.float()
    if change == "packed":
        bounds = torch.tensor([0, 66])
    if change == "few of 40":
        tensors[2], grad = (x[..., :40] for x in (tensors[2], grad))  # type: ignore[index]
    with standing_in(Recorder(hopper=True)):
        given = Inputs(*tensors, cu_seqlens=bounds)  # type: ignore[arg-type]
        assert chunked_backward.plan(grad, given) is None


@pytest.mark.parametrize(
    "form",
    [
        {"gates": "k", "sizes": (40, 56), "heads": 2},
        {"gates": "vh", "sizes": (56, 72), "family": "slow", "states": False},
        {"gates": "h", "sizes": (129, 64), "log": True},
    ],
    ids=str,
)
def test_widths_between_multiples_of_64(form: dict[str, Any]) -> None:
    call = Call(**form)
    assert_close(call.run(), call.exact(), BOUND)


def test_gradients_that_are_the_same_everywhere() -> None:
    """As those of a sum are; and a state's too."""
    call = Call("k", 66)
    assert call.last is not None
    call.grad = torch.ones(1, dtype=torch.bfloat16).expand(call.grad.shape)
    call.last = torch.ones(1).expand(call.last.shape)
    assert_close(call.run(), call.exact(), BOUND)


def test_the_largest_shape_compiles_and_fits_a_block() -> None:
    plan = chunked_backward.Plan("float", 3, True, 1, 64, 1, 128, 64, 1, 1, b"")
    assert plan.parts == 2 and plan.shared <= 227 * 1024
    assert plan.kernel().compile("sm_90a")


def test_gates_that_lie_at_odd_places() -> None:
    """Elements are read two at a time, which takes a copy of such gates."""
    call = Call("k", 66, heads=2)
    gate = call.tensors[3]
    assert gate is not None
    want = call.run()
    for at in (0, 1):
        padded = torch.full((1, 66, 2, 65), 9.0)
        padded[..., at : at + 64] = gate
        call.tensors[3] = padded[..., at : at + 64]
        for mine, same in zip(call.run(), want, strict=True):
            assert mine is None or same is None or torch.equal(mine, same)
