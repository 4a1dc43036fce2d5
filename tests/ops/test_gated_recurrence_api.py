"""The gated recurrence as an operator for models: forms, the step, gradients, contracts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence import (
    contract,
    cpu,
    explain,
    gated_recurrence,
    gated_recurrence_step,
    problem_forms,
)

GATES = {"k": "gate_k", "v": "gate_v", "h": "gate_head"}
TENSORS = ("q", "k", "v", *GATES.values(), "initial_state")
GPU = torch.cuda.is_available()
gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not GPU, reason="needs an NVIDIA GPU")


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Fresh memory is NaN, so that an output which is not written fails; two threads."""
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


def call(
    batch: int = 2,
    steps: int = 20,
    key_heads: int = 1,
    heads: int = 2,
    key_dim: int = 5,
    value_dim: int = 19,
    gates: str = "kvh",
    *,
    log: bool = False,
    lengths: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> dict[str, Any]:
    """Keyword arguments of gated_recurrence. Linear gates are signed, a tenth of them zero."""
    if lengths is not None:
        batch, steps = 1, sum(lengths)

    def gate(*width: int) -> Tensor:
        x = torch.randn(batch, steps, heads, *width)
        made = -x.abs() / 2 if log else torch.tanh(x) * (x.abs() > 0.13)
        return made.to(device, dtype)

    q, k = (torch.randn(batch, steps, key_heads, key_dim).to(device, dtype) for _ in range(2))
    count = batch if lengths is None else len(lengths)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    bounds = None if lengths is None else torch.tensor([0, *itertools.accumulate(lengths)])
    return {
        "q": q,
        "k": k,
        "v": torch.randn(batch, steps, heads, value_dim).to(device, dtype),
        "gate_k": gate(key_dim) if "k" in gates else None,
        "gate_v": gate(value_dim) if "v" in gates else None,
        "gate_head": gate() if "h" in gates else None,
        "log_gates": log,
        "scale": 0.7,
        "initial_state": torch.randn(count, heads, key_dim, value_dim).to(device, wide),
        "cu_seqlens": None if bounds is None else bounds.to(device),
    }


def of(arguments: dict[str, Any], change: Any) -> dict[str, Any]:
    """``arguments`` with ``change(name, tensor)`` of its floating tensors."""
    return {n: change(n, x) if n in TENSORS and x is not None else x for n, x in arguments.items()}


def part(arguments: dict[str, Any], steps: slice) -> dict[str, Any]:
    return of(arguments, lambda n, x: x if n == "initial_state" else x[:, steps])


def double(arguments: dict[str, Any]) -> dict[str, Any]:
    return of(arguments, lambda n, x: x.double())


def run(arguments: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor]:
    return gated_recurrence(**arguments, return_state=True, **more)


def gradients(
    arguments: dict[str, Any], weights: tuple[Tensor, Tensor], impl: str | None = None
) -> list[Tensor]:
    """By every tensor that is given, of a sum of y and the state with ``weights``."""
    given = of(arguments, lambda n, x: x.detach().requires_grad_())
    outputs = run(given, impl=impl)
    by = [given[n] for n in TENSORS if given[n] is not None]
    loss = sum((y.double() * w.double()).sum() for y, w in zip(outputs, weights, strict=True))
    assert isinstance(loss, Tensor)
    found = torch.autograd.grad(loss, by, allow_unused=impl == "reference")
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, by, strict=True)]


def weights_of(arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    y, state = run(arguments)
    return torch.randn_like(y), torch.randn_like(state)


def distance(got: Tensor, want: Tensor) -> float:
    """Of the largest element, relative to the largest wanted one."""
    assert got.shape == want.shape
    if want.numel() == 0:
        return 0.0
    error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-30)
    return float(error)


def same(got: Any, want: Any) -> bool:
    return len(got) == len(want) and all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


# ---- forms

FORMS: list[dict[str, Any]] = [
    {"gates": ""},
    {"gates": "k", "steps": 130, "heads": 4, "key_heads": 2},
    {"gates": "v", "log": True},
    {"gates": "h", "log": True, "key_dim": 40},
    {"gates": "kvh", "value_dim": 33, "heads": 3},
    {"gates": "kv", "lengths": (7, 0, 21, 1)},
    {"gates": "h", "lengths": (0, 0, 70, 0), "log": True},
    {"gates": "k", "lengths": ()},
    {"gates": "kvh", "lengths": (0, 0)},
    {"steps": 0},
    {"steps": 1},
    {"batch": 0, "steps": 3},
    {"key_dim": 1, "value_dim": 1, "steps": 2},
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_cpu_forms(form: dict[str, Any]) -> None:
    _assert_form(form, "cpu")


def _assert_form(form: dict[str, Any], device: str) -> None:
    """Values and gradients against float64, as near as PyTorch's own float32 within a factor."""
    given = call(**form, device=device)
    exact, own, got = run(double(given), impl="reference"), run(given, impl="reference"), run(given)
    for g, o, e in zip(got, own, exact, strict=True):
        assert distance(g, e) <= 4 * distance(o, e) + 5e-7
    weights = weights_of(given)
    wanted = gradients(double(given), weights, "reference")
    for g, e in zip(gradients(given, weights), wanted, strict=True):
        assert distance(g, e) <= 2e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cpu_half_precision_gradients(dtype: torch.dtype) -> None:
    _assert_half_gradients(dtype, "cpu")


def _assert_half_gradients(dtype: torch.dtype, device: str) -> None:
    given = call(steps=70, key_dim=48, gates="kh", dtype=dtype, device=device)
    weights = weights_of(given)
    wanted = gradients(double(given), weights, "reference")
    got = gradients(given, weights)
    names = [n for n in TENSORS if given[n] is not None]
    for name, g, w in zip(names, got, wanted, strict=True):
        assert g.dtype == given[name].dtype and torch.isfinite(g).all()
        assert distance(g, w) <= torch.finfo(dtype).eps, name  # one rounding of the result


def test_float64_is_exact_to_its_own_rounding() -> None:
    given = call(steps=150, dtype=torch.float64)
    for got, want in zip(run(given), run(given, impl="reference"), strict=True):
        assert distance(got, want) <= 1e-14


# ---- gradients


@pytest.mark.parametrize(
    "form",
    [
        {"batch": 2, "steps": 4},
        {"batch": 1, "steps": 1, "gates": "k"},
        {"batch": 1, "steps": 2, "gates": "v", "key_dim": 1},
        {"batch": 1, "steps": 3, "gates": "h", "log": True},
        {"batch": 1, "steps": 3, "gates": ""},
        {"lengths": (2, 0, 3), "gates": "kvh"},
    ],
    ids=str,
)
def test_gradcheck(form: dict[str, Any]) -> None:
    sizes = {"key_heads": 1, "heads": 2, "key_dim": 3, "value_dim": 4} | form
    given = call(**sizes, dtype=torch.float64)
    if not sizes.get("log"):
        for name in GATES.values():  # exact zeros and negative gates are among them
            if given[name] is not None:
                given[name].view(-1)[::3] = 0.0
                given[name].view(-1)[1::3] = -0.5
    names = [n for n in TENSORS if given[n] is not None]
    leaves = [given[n].detach().clone().requires_grad_() for n in names]

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return run({**given, **dict(zip(names, tensors, strict=True))})

    assert torch.autograd.gradcheck(function, leaves)


def test_gradients_at_zero_gates_are_not_lost() -> None:
    """What stood before the gate counts, though none of it passed: a shortcut through the logarithm
    of the gate would give 0."""
    given = call(batch=1, steps=3, gates="k", key_heads=2)
    given["gate_k"] = torch.zeros_like(given["gate_k"])
    weights = weights_of(given)
    got = gradients(given, weights)[3]
    wanted = gradients(double(given), weights, "reference")[3]
    assert got.abs().min() > 1e-6 and distance(got, wanted) <= 1e-6


def test_expanded_and_strided_gradients() -> None:
    given = call(steps=9)
    leaves = of(given, lambda n, x: x.detach().requires_grad_())
    by = [leaves[n] for n in TENSORS]
    y, state = run(leaves)
    expanded = torch.autograd.grad(y.sum() + state.sum(), by, retain_graph=True)
    full = torch.autograd.grad([y, state], by, [torch.ones_like(y), torch.ones_like(state)])
    assert same(expanded, full)
    y, _ = run(leaves)
    narrow = torch.autograd.grad(y[..., ::2].sum(), by, retain_graph=True)
    mask = torch.zeros_like(y)
    mask[..., ::2] = 1
    assert same(
        narrow, torch.autograd.grad(y, by, mask.transpose(1, 2).contiguous().transpose(1, 2))
    )


def test_gradients_of_some_tensors_only() -> None:
    given = call(steps=7)
    given["gate_v"].requires_grad_()
    y = gated_recurrence(**given)
    y.square().sum().backward()
    assert given["gate_v"].grad is not None and given["gate_k"].grad is None
    with torch.no_grad():
        assert not gated_recurrence(**given).requires_grad


def test_nothing_but_the_arguments_is_kept() -> None:
    given = of(call(steps=300, key_dim=16), lambda n, x: x.requires_grad_())
    kept: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        run(given)
    addresses = {x.data_ptr() for x in given.values() if isinstance(x, Tensor)}
    assert kept and {x.data_ptr() for x in kept} <= addresses


def test_a_second_derivative_is_refused() -> None:
    given = call(steps=4)
    given["q"].requires_grad_()
    (first,) = torch.autograd.grad(gated_recurrence(**given).sum(), given["q"], create_graph=True)
    with pytest.raises(UnsupportedError, match="no second derivative"):
        first.sum().backward()


# ---- contracts


def _assert_contracts(device: str) -> None:
    """Bit for bit: the same in every run; in any batch; with anything later in the sequence."""
    given = call(batch=3, steps=150, key_dim=12, gates="kvh", device=device)
    y, state = run(given)
    kept = y.clone(), state.clone()
    weights = weights_of(given)
    by = gradients(given, weights)
    assert same(run(given), kept) and same(gradients(given, weights), by)
    assert same((y, state), kept)  # another call has not written to it
    alone = of(given, lambda n, x: x[1:2])
    assert same(run(alone), (y[1:2], state[1:2]))
    by_alone = gradients(alone, (weights[0][1:2], weights[1][1:2]))
    assert same(by_alone, [x[1:2] for x in by])
    for t in (1, 17, 64, 129):
        later = of(given, lambda n, x: x.clone())
        for name in ("q", "k", "v", *GATES.values()):
            later[name][:, t:] = torch.randn_like(later[name][:, t:]) * 1e3
        assert torch.equal(run(later)[0][:, :t], y[:, :t])


def test_cpu_contracts() -> None:
    _assert_contracts("cpu")


def test_cpu_threads_do_not_matter() -> None:
    given = call(batch=3, steps=90, key_dim=33, value_dim=40)
    weights = weights_of(given)
    two = (*run(given), *gradients(given, weights))
    torch.set_num_threads(1)
    assert same((*run(given), *gradients(given, weights)), two)


@pytest.mark.parametrize("cut", [1, 37, 64, 99])
def test_cpu_segments_with_a_carried_state_are_the_whole(cut: int) -> None:
    given = call(steps=100, dtype=torch.bfloat16)
    y, state = run(given)
    first, carried = run(part(given, slice(0, cut)))
    second, last = run(part({**given, "initial_state": carried}, slice(cut, None)))
    assert same((torch.cat((first, second), 1), last), (y, state))


def test_cpu_prefill_and_steps_are_the_whole() -> None:
    given = call(steps=70, log=True)
    y, state = run(given)
    first, carried = run(part(given, slice(0, 66)))
    outputs = [first]
    for t in range(66, 70):
        outputs.append(_step(given, t, carried).unsqueeze(1))
    assert same((torch.cat(outputs, 1), carried), (y, state))


def _step(given: dict[str, Any], t: int, state: Tensor, **more: Any) -> Tensor:
    at = {n: None if given[n] is None else given[n][:, t] for n in TENSORS[:-1]}
    return gated_recurrence_step(
        **at, state=state, log_gates=given["log_gates"], scale=given["scale"], **more
    )


def test_cpu_packed_sequences_are_those_of_a_batch() -> None:
    """Values and gradients: of packed sequences of one length, of each alone, and in a batch."""
    packed = call(lengths=(70, 70, 70))
    rows = of(packed, lambda n, x: x if n == "initial_state" else x.unflatten(1, (3, 70))[0])
    batch = {**rows, "cu_seqlens": None}
    y, state = run(packed)
    assert torch.equal(y[0].unflatten(0, (3, 70)), run(batch)[0])
    weights = weights_of(packed)
    by = gradients(packed, weights)
    by_batch = gradients(batch, (weights[0][0].unflatten(0, (3, 70)), weights[1]))
    assert same([x.flatten() for x in by], [x.flatten() for x in by_batch])
    bounds = torch.tensor([0, 70], dtype=torch.int32)
    alone = of(packed, lambda n, x: x[2:] if n == "initial_state" else x[:, 140:])
    assert same(run({**alone, "cu_seqlens": bounds}), (y[:, 140:], state[2:]))


def test_no_nan_where_products_of_gates_leave_the_range() -> None:
    _assert_extremes("cpu")


def _assert_extremes(device: str) -> None:
    """While nothing has come in, gates multiply to 1e1200, and their gradients with them."""
    for axes in ("k", "v", "h", "kvh"):
        given = call(batch=1, steps=60, gates=axes, device=device)
        given["initial_state"] = None
        for name in ("k", "v"):
            given[name][:, :40] = 0
        for name in (GATES[axis] for axis in axes):
            given[name][:, :40] = 1e30
            given[name][:, 40] = 0
        exact = run(double(given), impl="reference")
        for got, want in zip(run(given), exact, strict=True):
            assert distance(got, want) <= 2e-6, axes
        weights = weights_of(given)
        for got in gradients({**given, "initial_state": torch.zeros_like(weights[1])}, weights):
            assert torch.isfinite(got).all(), axes


# ---- the step


@pytest.mark.parametrize("impl", [None, "reference"])
def test_step_updates_the_state_in_place(impl: str | None) -> None:
    given = call(batch=3, steps=1, gates="kh")
    pool = torch.randn(5, 2, 5, 24)
    state = pool[1:4, :, :, 2:21]  # a view, neither its first nor its last axis whole
    state.copy_(given["initial_state"])
    address, around = state.data_ptr(), pool.clone()
    y, last = run(double(given), impl="reference")
    out = _step(given, 0, state, impl=impl)
    assert state.data_ptr() == address
    assert distance(out, y[:, 0]) <= 1e-6 and distance(state, last) <= 1e-6
    around[1:4, :, :, 2:21] = state
    assert torch.equal(pool, around)  # and nothing else


def test_step_refuses() -> None:
    given = call(steps=1, gates="v")
    state = given["initial_state"]
    with pytest.raises(ValueError, match="state has shape"):
        _step(given, 0, state[:1])
    with pytest.raises(ValueError, match=r"state is torch\.float64"):
        _step(given, 0, state.double())
    with pytest.raises(ValueError, match="share memory"):
        _step(given, 0, state[:, :1].expand(state.shape))
    with pytest.raises(ValueError, match="without an axis of time"):
        gated_recurrence_step(given["q"], given["k"], given["v"], state)
    with pytest.raises(UnsupportedError, match="has no gradient"):
        _step(given, 0, state.requires_grad_())


# ---- arguments, torch.library, explain


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": torch.zeros(2, 20, 4, 5), "k": torch.zeros(2, 20, 4, 5)}, "a multiple of"),
        ({"q": torch.zeros(2, 20, 0, 5), "k": torch.zeros(2, 20, 0, 5)}, "a multiple of"),
        ({"gate_k": torch.zeros(2, 20, 1, 5)}, "gate_k has shape .* with v's H"),
        ({"cu_seqlens": torch.tensor([0, 20])}, "B must be 1, not 2"),
        ({"cu_seqlens": torch.tensor([[0, 20]])}, r"cu_seqlens has shape \(1, 2\)"),
        ({"cu_seqlens": torch.zeros(0, dtype=torch.int64)}, r"cu_seqlens has shape \(0,\)"),
        ({"cu_seqlens": torch.tensor([0.0, 20.0])}, "cu_seqlens is torch.float32"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], text: str) -> None:
    for impl in (None, "reference"):
        with pytest.raises(ValueError, match=text):
            gated_recurrence(**{**call(), **change}, impl=impl)


@pytest.mark.parametrize("bounds", [[0, 12, 7, 20], [1, 5, 12, 20], [0, 5, 12, 19]])
def test_wrong_bounds(bounds: list[int]) -> None:
    given = call(lengths=(5, 7, 8))
    given["cu_seqlens"] = torch.tensor(bounds)
    for impl in (None, "reference"):
        with pytest.raises(ValueError, match=r"must rise from 0 to T = 20"):
            gated_recurrence(**given, impl=impl)


def _positional(given: dict[str, Any]) -> tuple[Any, ...]:
    *tensors, initial = (given[n] for n in TENSORS)
    return (*tensors, given["log_gates"], given["scale"], initial, given["cu_seqlens"])


def _assert_opcheck(device: str) -> None:
    for form in ({"gates": "kh"}, {"lengths": (2, 1), "gates": "v", "log": True}):
        given = call(**form, steps=3, value_dim=4, device=device)  # type: ignore[arg-type]
        tracked = of(given, lambda n, x: x.requires_grad_())
        torch.library.opcheck(contract.op, _positional(tracked))
        torch.library.opcheck(contract.op_with_state, _positional(tracked))
    for _, without in contract.OPS.values():
        torch.library.opcheck(without, _positional(of(tracked, lambda n, x: x.detach())))
    given = call(steps=3, value_dim=4, device=device)
    y, state = run(given)
    torch.library.opcheck(contract.op_backward, (y, state, *_positional(given)))
    at = [None if given[n] is None else given[n][:, 0] for n in TENSORS[:-1]]
    torch.library.opcheck(contract.op_step, (*at[:3], state.clone(), *at[3:], False, 0.5))


def test_opcheck() -> None:
    _assert_opcheck("cpu")


def test_compiles_forward_and_backward_once_for_any_length() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")

    def model(x: Tensor, gate: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (2, 12)).split((4, 4, 4), dim=-1)
        y, state = gated_recurrence(q * 2, k, v, gate_k=gate, return_state=True)
        with torch.no_grad():
            state = state.clone()
            step = gated_recurrence_step(q[:, 0], k[:, 0], v[:, 0], state, gate_k=gate[:, 0])
        return y.sum() + step.sum() + state.sum()

    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
    compilations = []
    for steps in (5, 9, 70):
        x = torch.randn(2, steps, 24, requires_grad=True)
        gate = torch.rand(2, steps, 2, 4, requires_grad=True)
        wanted = model(x, gate)
        by = torch.autograd.grad(wanted, (x, gate))
        got = compiled(x, gate)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(torch.autograd.grad(got, (x, gate)), by)
        compilations.append(counter.frame_count)
    assert compilations[0] > 0 and set(compilations) == {compilations[0]}


def test_columns_of_a_fused_projection_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    given = call(steps=9, heads=2, key_heads=2, key_dim=6, value_dim=8, gates="k")
    fused = torch.randn(2, 9, 2 * (6 + 6 + 8 + 6))
    parts = fused.split((12, 12, 16, 12), dim=-1)
    for name, columns in zip(("q", "k", "v", "gate_k"), parts, strict=True):
        given[name] = columns.unflatten(-1, (2, -1))
    wanted = run(of(given, lambda n, x: x.clone()))

    def copied(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("a tensor was copied")

    for name in ("contiguous", "clone", "to", "copy_"):
        monkeypatch.setattr(Tensor, name, copied)
    y, state = cpu.launch(
        given["q"], given["k"], given["v"], given["gate_k"], None, None, given["scale"],
        given["initial_state"], True,
    )  # fmt: skip
    monkeypatch.undo()
    assert same((y, state), wanted)


def test_explain() -> None:
    given = call(lengths=(3, 4), gates="kh")
    text = explain(**given)
    assert "2 sequences of 2 heads, a state of 5 x 19" in text
    assert "kernel.cpp" in text and "because the tensors are on cpu" in text
    assert "backward.cpp" in text
    assert "PyTorch loop" in explain(**given, impl="reference")
    with pytest.raises(UnsupportedError, match="'cuda' was asked for"):
        explain(**given, impl="cuda")
    with pytest.raises(ValueError, match="k has shape"):
        explain(**{**given, "k": given["k"][..., 1:]})


def test_counts_of_the_forms() -> None:
    """5 for the recurrence with one gate, one more for each further gate."""
    case = problem_forms.CASES["packed_equal"]
    assert problem_forms.FLOPS(**case) == 6 * 48 * 2 * 16 * 24


def test_the_candidate_counts_its_tensors() -> None:
    module = cpu.ModelNew("kv", False, 1.0, True)
    given = call(gates="kv")
    with pytest.raises(TypeError, match="3 tensors belong after q, k and v, 2 are given"):
        module(given["q"], given["k"], given["v"], given["gate_k"], given["gate_v"])


# ---- on a GPU


@gpu
@needs_gpu
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gpu_forms(form: dict[str, Any]) -> None:
    _assert_form(form, "cuda")


@gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gpu_half_precision_gradients(dtype: torch.dtype) -> None:
    _assert_half_gradients(dtype, "cuda")


@gpu
@needs_gpu
def test_gpu_contracts() -> None:
    _assert_contracts("cuda")
    _assert_extremes("cuda")


@gpu
@needs_gpu
def test_gpu_segments_steps_and_packed_sequences() -> None:
    for key_dim, gates in ((24, "k"), (12, "vh"), (64, "k")):  # spans of 64 or 128 steps
        given = call(steps=384, key_dim=key_dim, gates=gates, device="cuda")
        y, state = run(given)
        first, carried = run(part(given, slice(0, 256)))
        second, last = run(part({**given, "initial_state": carried}, slice(256, None)))
        assert same((torch.cat((first, second), 1), last), (y, state))
    carried = given["initial_state"].clone()
    steps = torch.stack([_step(given, t, carried) for t in range(30)], 1)
    assert distance(steps, y[:, :30]) <= 2e-6
    packed = call(lengths=(130, 0, 3), gates="kh", device="cuda")
    y, state = run(packed)
    alone = of(packed, lambda n, x: x[:1] if n == "initial_state" else x[:, :130])
    bounds = torch.tensor([0, 130], dtype=torch.int32, device="cuda")
    assert same(run({**alone, "cu_seqlens": bounds}), (y[:, :130], state[:1]))


@gpu
@needs_gpu
def test_gpu_graphs_hold_the_step_and_packed_sequences() -> None:
    given = call(lengths=(9, 4), gates="k", device="cuda")
    one = call(steps=1, gates="v", device="cuda")
    state, wanted = one["initial_state"].clone(), one["initial_state"].clone()
    run(given), _step(one, 0, state.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, step = run(given)[0], _step(one, 0, state)
    state.copy_(wanted)
    y.zero_()
    for _ in range(3):
        graph.replay()
        assert torch.equal(step, _step(one, 0, wanted))
    assert torch.equal(state, wanted) and torch.equal(y, run(given)[0])


@gpu
@needs_gpu
def test_gpu_opcheck_and_explain() -> None:
    _assert_opcheck("cuda")
    assert "kernel.cu" in explain(**call(device="cuda"))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[gpu, needs_gpu])])
def test_gradients_notice_a_step_that_overwrites_what_they_need(device: str) -> None:
    weight = torch.ones((), device=device, requires_grad=True)
    q, k, v = torch.ones(3, 1, 1, 4, device=device)
    for _ in range(2):
        state = torch.ones(1, 1, 4, 4, device=device)
        loss = (weight * state).sum()
        gated_recurrence_step(q, k, v, state)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
