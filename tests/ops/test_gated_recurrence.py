"""The gated recurrence: our CPU and CUDA kernels against the recurrence in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence import (
    config,
    cpu,
    cuda,
    gated_recurrence,
    problem,
)
from kernelproof.ops.gated_recurrence import reference as eager

FLOAT, HALF, BFLOAT = torch.float32, torch.float16, torch.bfloat16
LAYOUTS = ("contiguous", "heads_first", "time_first", "inner_stride", "sliced", "expanded")
KEY, VALUE, HEAD = config.KEY_GATE, config.VALUE_GATE, config.HEAD_GATE

# B, T, H, K, V: sizes below, at and beyond vectors, register blocks, segments, spans and tiles
SHAPES = [
    (1, 1, 1, 1, 1), (2, 3, 1, 2, 17), (1, 9, 2, 3, 4), (1, 16, 1, 4, 32), (2, 65, 2, 5, 8),
    (1, 33, 3, 8, 33), (1, 128, 1, 24, 24), (1, 129, 2, 13, 20), (1, 70, 1, 31, 16),
    (1, 300, 1, 32, 7), (2, 64, 2, 64, 48), (1, 67, 1, 60, 9), (1, 40, 1, 65, 5),
    (1, 21, 1, 128, 12), (1, 11, 1, 129, 6), (1, 9, 1, 256, 8), (1, 5, 1, 300, 3),
]  # fmt: skip


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


def _tensor(*shape: int, layout: str = "contiguous") -> Tensor:
    """An unset float tensor of ``shape`` in one of LAYOUTS."""
    if layout == "heads_first" and len(shape) == 4:
        return torch.empty(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
    if layout == "time_first":
        return torch.empty(shape[1], shape[0], *shape[2:]).transpose(0, 1)
    if layout == "inner_stride":
        return torch.empty(*shape, 3)[..., 1]
    if layout == "sliced":
        return torch.empty(*shape[:-1], shape[-1] + 3)[..., 1 : 1 + shape[-1]]
    return torch.empty(shape)


def _problem(
    sizes: tuple[int, int, int, int, int],
    gates: int,
    *,
    layout: str = "contiguous",
    dtype: torch.dtype = FLOAT,
    gate_dtype: torch.dtype | None = None,
    initial: bool = True,
) -> dict[str, Any]:
    """Keyword arguments of gated_recurrence with the gates named by the bits of ``gates``."""
    b, t, h, k, v = sizes

    def fill(*shape: int, kind: torch.dtype = dtype, gate: bool = False) -> Tensor:
        x = _tensor(*shape, layout=layout).to(kind)
        y = torch.randn(shape)
        x.copy_(torch.tanh(y) * (y.abs() > 0.1) if gate else y)  # signed, with zeros
        return x[:, :1].expand(shape) if layout == "expanded" and shape[1] else x

    kind = gate_dtype or dtype
    return {
        "q": fill(b, t, h, k),
        "k": fill(b, t, h, k),
        "v": fill(b, t, h, v),
        "gate_k": fill(b, t, h, k, kind=kind, gate=True) if gates & KEY else None,
        "gate_v": fill(b, t, h, v, kind=kind, gate=True) if gates & VALUE else None,
        "gate_head": fill(b, t, h, kind=kind, gate=True) if gates & HEAD else None,
        "scale": 0.75,
        "initial_state": fill(b, h, k, v, kind=FLOAT) if initial else None,
    }


def _double(arguments: dict[str, Any]) -> dict[str, Any]:
    return {n: x.double() if isinstance(x, Tensor) else x for n, x in arguments.items()}


def _close(actual: Tensor, same: Tensor, exact: Tensor) -> None:
    """``actual`` is as near to ``exact`` as PyTorch's own float32 result, within a factor of 4."""
    assert actual.shape == exact.shape and actual.dtype == same.dtype
    if exact.numel() == 0:
        return
    actual, exact = actual.cpu(), exact.cpu()
    error = (actual.double() - exact).abs().max().item()
    own = (same.cpu().double() - exact).abs().max().item()
    bound = 4 * own + 4 * torch.finfo(FLOAT).eps * exact.abs().max().item()
    assert error <= bound, f"error {error:.3g}, float32 eager {own:.3g}"


def _check(arguments: dict[str, Any], device: str = "cpu") -> None:
    """y and state of the kernel of ``device`` against float64; inputs stay as they were."""
    exact = eager.run(**_double(arguments))
    same = eager.run(**arguments)
    given = {n: _like_on(x, device) if isinstance(x, Tensor) else x for n, x in arguments.items()}
    before = {n: x.clone() for n, x in given.items() if isinstance(x, Tensor)}
    y, state = gated_recurrence(**given, return_state=True)
    _close(y, same[0], exact[0])
    _close(state, same[1], exact[1])
    assert y.is_contiguous() and state.is_contiguous()
    assert torch.equal(gated_recurrence(**given), y)
    for name, x in before.items():
        assert torch.equal(x, given[name]), f"{name} was modified"


def _like_on(x: Tensor, device: str) -> Tensor:
    """A copy of x on ``device`` with its strides (``Tensor.to`` would drop gaps)."""
    if device == "cpu":
        return x
    span = 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    space = torch.full((max(span, 1),), float("nan"), dtype=x.dtype, device=device)
    copy = space.as_strided(x.shape, x.stride())
    if x.numel():
        # Through the distinct elements: an expanded tensor must not be written to.
        squeezed = [slice(0, 1) if s == 0 else slice(None) for s in x.stride()]
        copy[tuple(squeezed)].copy_(x[tuple(squeezed)])
    return copy


# ---- the problem


@pytest.mark.parametrize("name", problem.CASES)
def test_cpu_candidate_on_cases(name: str) -> None:
    inputs = problem.get_inputs(**problem.CASES[name])
    model = problem.Model(*problem.get_init_inputs())
    exact = model(*[x.double() for x in inputs])
    _close(cpu.ModelNew()(*inputs), model(*inputs), exact)
    for baseline in problem.BASELINES.values():
        _close(baseline(*inputs), model(*inputs), exact)


def test_model_is_the_value_gate_of_the_operator() -> None:
    q, k, v, gate = problem.get_inputs(steps=9)
    expected = problem.Model()(q, k, v, gate)
    y = gated_recurrence(q, k, v, gate_v=gate, impl="reference")
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    swapped = gated_recurrence(q, k, v, gate_k=gate, impl="reference")
    assert not torch.allclose(swapped, expected, atol=1e-2)


def test_counts_of_the_founding_case() -> None:
    assert problem.BYTES() == sum(
        4 * x.numel() for x in [*problem.get_inputs(), torch.empty(24576)]
    )
    assert problem.FLOPS() == 5 * 2 * 128 * 4 * 24 * 24


# ---- the CPU kernel


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_cpu_sizes(sizes: tuple[int, int, int, int, int]) -> None:
    for gates in (VALUE, KEY | HEAD):
        _check(_problem(sizes, gates))


@pytest.mark.parametrize("gates", range(8))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_cpu_gates_and_layouts(gates: int, layout: str) -> None:
    _check(_problem((2, 67, 3, 27, 21), gates, layout=layout, initial=gates % 2 == 0))


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
@pytest.mark.parametrize("gate_dtype", [None, FLOAT])
def test_cpu_half_precision(dtype: torch.dtype, gate_dtype: torch.dtype | None) -> None:
    for layout, gates in (("contiguous", VALUE), ("inner_stride", 7), ("sliced", KEY)):
        arguments = _problem(
            (2, 70, 2, 24, 19), gates, layout=layout, dtype=dtype, gate_dtype=gate_dtype
        )
        _check(arguments)


@pytest.mark.parametrize(
    "sizes", [(2, 0, 3, 4, 5), (0, 4, 3, 4, 5), (2, 4, 0, 4, 5), (2, 4, 3, 0, 5), (2, 4, 3, 4, 0)]
)
def test_cpu_empty(sizes: tuple[int, int, int, int, int]) -> None:
    _check(_problem(sizes, 7))
    _check(_problem(sizes, 0, initial=False))


def test_cpu_threads_do_not_matter() -> None:
    arguments = _problem((3, 90, 2, 50, 70), 7)
    two = gated_recurrence(**arguments, return_state=True)
    torch.set_num_threads(1)
    one = gated_recurrence(**arguments, return_state=True)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def _assert_causal(device: str) -> None:
    q, k, v, gate = (x.to(device) for x in problem.get_inputs(batch=1, steps=150, gates="zeros"))
    y = gated_recurrence(q, k, v, gate_v=gate)
    for t in (1, 57, 112, 127, 128, 149):
        later = [x.clone() for x in (q, k, v, gate)]
        for x in later:
            x[:, t:] = torch.randn_like(x[:, t:]) * 1e9
        changed = gated_recurrence(*later[:3], gate_v=later[3])
        assert torch.equal(changed[:, :t], y[:, :t])


def test_cpu_causal_to_the_bit() -> None:
    _assert_causal("cpu")


def _extreme_gates() -> list[Tensor]:
    """The state stays zero while gates multiply to 1e800, then a gate is zero; and NaN-free."""
    q, k, v, gate = problem.get_inputs(batch=1, steps=140)
    k[:, :40] = 0
    gate[:, :40] = 1e20
    gate[:, 40:60] = 1e-20
    gate[:, 60] = 0
    return [q, k, v, gate]


def _assert_extreme_gates(device: str) -> None:
    q, k, v, gate = _extreme_gates()
    exact = problem.Model()(*[x.double() for x in (q, k, v, gate)])
    y = gated_recurrence(*[x.to(device) for x in (q, k, v)], gate_v=gate.to(device))
    _close(y, problem.Model()(q, k, v, gate), exact)


def _assert_range_of_products(device: str) -> None:
    """Products of a few gates underflow, but the state, first raised by a large gate, does not."""
    for axis in ("gate_k", "gate_v", "gate_head"):
        arguments = _problem((1, 140, 2, 24, 24), 0, initial=False)
        gate = torch.full((1, 140, 2, 24) if axis != "gate_head" else (1, 140, 2), 0.9)
        gate[:, 3], gate[:, 6:8], gate[:, 20] = 1e30, 1e-25, 1e20
        for name in ("k", "v"):
            arguments[name][:, 1:20] = 0
        arguments[axis] = gate
        exact, same = eager.run(**_double(arguments))[0], eager.run(**arguments)[0]
        given = {n: x.to(device) if isinstance(x, Tensor) else x for n, x in arguments.items()}
        y = gated_recurrence(**given)
        _close(y[:, 20:], same[:, 20:], exact[:, 20:])


def test_cpu_gates_that_overflow_a_product() -> None:
    _assert_extreme_gates("cpu")
    _assert_range_of_products("cpu")


def _assert_infinite(device: str) -> None:
    """An infinite gate gives what the recurrence gives; rows that pad the state stay out of it."""
    q, k, v, gate = (x.abs() + 0.1 for x in problem.get_inputs(steps=40, key_dim=5, value_dim=3))
    gate[:, 20, :, 1] = float("inf")
    expected = problem.Model()(q, k, v, gate)
    y = gated_recurrence(*[x.to(device) for x in (q, k, v)], gate_v=gate.to(device)).cpu()
    assert torch.isinf(expected).any() and not torch.isnan(expected).any()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)


def test_cpu_infinite_gate() -> None:
    _assert_infinite("cpu")


# ---- the public function and its contract


def _small() -> dict[str, Any]:
    return _problem((2, 3, 2, 4, 5), 7)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"q": torch.zeros(2, 3, 4)}, r"q has shape \(2, 3, 4\); it must be \(B, T, Hq, K\)"),
        ({"v": torch.zeros(2, 3, 4)}, r"v has shape \(2, 3, 4\); it must be \(B, T, H, V\)"),
        ({"k": torch.zeros(2, 3, 2, 5)}, "k has shape"),
        ({"v": torch.zeros(2, 4, 2, 5)}, "v has shape"),
        ({"gate_k": torch.zeros(2, 3, 2, 5)}, "gate_k has shape .* scales rows"),
        ({"gate_v": torch.zeros(2, 3, 2, 4)}, "gate_v has shape .* scales columns"),
        ({"gate_head": torch.zeros(2, 3, 2, 1)}, "gate_head has shape"),
        ({"initial_state": torch.zeros(2, 2, 5, 4)}, "initial_state has shape"),
        ({"initial_state": torch.zeros(2, 2, 4, 5).half()}, "initial_state is torch.float16"),
        ({"k": torch.zeros(2, 3, 2, 4).half()}, "k is torch.float16 and v is torch.float32"),
        ({"gate_v": torch.zeros(2, 3, 2, 5).half()}, "gates must share one dtype"),
        ({"gate_v": torch.zeros(2, 3, 2, 5, device="meta")}, "gate_v is on meta and v on cpu"),
        ({"impl": "fast"}, "impl='fast' is unknown"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gated_recurrence(**{**_small(), **change})


def test_integer_inputs_are_refused() -> None:
    x = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="must be floating point"):
        gated_recurrence(x, x, x)


def test_unsupported_arguments() -> None:
    arguments = _small()
    with pytest.raises(UnsupportedError, match="'cuda' was asked for"):
        gated_recurrence(**arguments, impl="cuda")
    with pytest.raises(UnsupportedError, match="no Triton kernel"):
        gated_recurrence(**arguments, impl="triton")
    meta = {n: x.to("meta") if isinstance(x, Tensor) else x for n, x in arguments.items()}
    with pytest.raises(UnsupportedError, match="not for 'meta'"):
        gated_recurrence(**meta)


def test_compiles_as_one_graph() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        y, state = gated_recurrence(q * 2, k, v, gate_v=gate, return_state=True)
        return gated_recurrence(q, k, y, gate_k=gate, initial_state=state) + 1

    inputs = problem.get_inputs(steps=6)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*inputs), model(*inputs))


# ---- the CUDA kernel

GPU_SHAPES = [*SHAPES, (1, 7, 1, 513, 9), (1, 6, 1, 1024, 5), (1, 3, 1, 2050, 4), (300, 2, 3, 8, 8)]


def _chosen(case: dict[str, Any]) -> config.Config:
    """The configuration that the launcher takes for a case on a large GPU."""
    sizes = {"batch": 2, "steps": 128, "heads": 4, "key_dim": 24, "value_dim": 24, **case}
    key_dim, value_dim = sizes["key_dim"], sizes["value_dim"]
    wide = key_dim % 4 == 0 and value_dim % 4 == 0
    heads = sizes["batch"] * sizes["heads"]
    return config.choose(FLOAT, FLOAT, key_dim, value_dim, sizes["steps"], heads, VALUE, wide, 132)


def test_cuda_sources_compile() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    chosen_ones = {_chosen(case) for case in problem.CASES.values() if case.get("steps") != 0}
    for chosen in chosen_ones:
        assert chosen.kernel("contiguous").compile("sm_90a")
    founding = _chosen({})
    assert founding.kernel("strided").compile("sm_80")
    assert founding.kernel("contiguous").compile("sm_80")
    half = config.choose(BFLOAT, FLOAT, 64, 64, 256, 8, 7, False, 132)
    assert half.kernel("strided").compile("sm_80")


def test_cuda_configurations_fit() -> None:
    sizes = (1, 4, 5, 16, 24, 33, 64, 100, 128, 200, 256, 511, 512, 777, 1024)
    for limit in (99 * 1024, 113 * 1024):
        for key_dim, steps, gates in itertools.product(
            sizes, (0, 1, 8, 33, 64, 128, 10**6), range(8)
        ):
            for heads in (1, 10**5):
                c = config.choose(FLOAT, FLOAT, key_dim, 64, steps, heads, gates, True, 132, limit)
                assert c.shared <= limit and c.threads <= 512
                assert c.lanes * c.rows >= key_dim and c.tile % 4 == 0 and c.steps >= 1
                assert c.buffers == 2 or steps <= c.segments * c.steps


def test_cuda_split_of_time_ignores_the_batch() -> None:
    for key_dim, steps in itertools.product((8, 24, 64, 128, 256), (20, 128, 5000)):
        few, many = (
            config.choose(FLOAT, FLOAT, key_dim, 64, steps, heads, VALUE, True, 132)
            for heads in (1, 10**5)
        )
        assert (few.segments, few.steps, few.cols) == (many.segments, many.steps, many.cols)


gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


@gpu
@needs_gpu
@pytest.mark.parametrize("name", problem.CASES)
def test_gpu_candidate_on_cases(name: str) -> None:
    inputs = problem.get_inputs(**problem.CASES[name])
    exact = problem.Model()(*[x.double() for x in inputs])
    y = cuda.ModelNew()(*[x.cuda() for x in inputs])
    _close(y, problem.Model()(*inputs), exact)


@gpu
@needs_gpu
@pytest.mark.parametrize("sizes", GPU_SHAPES, ids=str)
def test_gpu_sizes(sizes: tuple[int, int, int, int, int]) -> None:
    _check(_problem(sizes, VALUE), "cuda")
    _check(_problem(sizes, KEY, layout="sliced"), "cuda")


@gpu
@needs_gpu
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gpu_gates_and_layouts(layout: str) -> None:
    for gates in range(8):
        _check(_problem((2, 67, 3, 27, 21), gates, layout=layout, initial=gates % 2 == 0), "cuda")


@gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_gpu_half_precision(dtype: torch.dtype) -> None:
    for layout, gates, kind in (("contiguous", VALUE, None), ("sliced", 7, FLOAT)):
        arguments = _problem(
            (2, 150, 2, 24, 20), gates, layout=layout, dtype=dtype, gate_dtype=kind
        )
        _check(arguments, "cuda")


@gpu
@needs_gpu
def test_gpu_empty() -> None:
    for sizes in ((2, 0, 3, 4, 5), (0, 4, 3, 4, 5), (2, 4, 3, 0, 5), (2, 4, 3, 4, 0)):
        _check(_problem(sizes, 7), "cuda")


@gpu
@needs_gpu
def test_gpu_causal_and_deterministic() -> None:
    _assert_causal("cuda")
    inputs = [x.cuda() for x in problem.get_inputs(steps=500)]
    first = cuda.ModelNew()(*inputs)
    assert all(torch.equal(cuda.ModelNew()(*inputs), first) for _ in range(20))


@gpu
@needs_gpu
def test_gpu_extreme_gates() -> None:
    _assert_extreme_gates("cuda")
    _assert_range_of_products("cuda")
    _assert_infinite("cuda")


@gpu
@needs_gpu
def test_gpu_batch_does_not_matter() -> None:
    inputs = [x.cuda() for x in problem.get_inputs(batch=200, steps=150, key_dim=16)]
    whole = cuda.ModelNew()(*inputs)
    assert torch.equal(cuda.ModelNew()(*[x[7:8] for x in inputs]), whole[7:8])


@gpu
@needs_gpu
def test_gpu_graph_and_stream() -> None:
    inputs = [x.cuda() for x in problem.get_inputs()]
    expected = cuda.ModelNew()(*inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.equal(cuda.ModelNew()(*inputs), expected)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = cuda.ModelNew()(*inputs)
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected)
