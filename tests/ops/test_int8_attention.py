"""int8_attention: the kernels against a float64 computation of the definition."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelproof.cuda_forms import Forms
from kernelproof.ops.int8_attention import (
    contract,
    cpu,
    cuda,
    cuda_general,
    cuda_quick,
    int8_attention,
    problem,
)

RELATIVE_RMS = 1e-6
EAGER_FACTOR = 4.0  # a kernel's largest error, in units of eager fp32's own

Inputs = list[Tensor]


def exact(inputs: Inputs, causal: bool = True, scale: float | None = None) -> Tensor:
    """The definition in float64, vectorised (`test_reference` ties it to the loop)."""
    q, k, v, q_scale, k_scale, v_scale = (t.double() for t in inputs)
    group = q.shape[2] // max(k.shape[2], 1)
    if q.numel() == 0 or k.numel() == 0:
        return torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    q = (q * q_scale.view(1, 1, -1, 1)).transpose(1, 2)
    k = (k * k_scale.view(1, 1, -1, 1)).transpose(1, 2).repeat_interleave(group, 1)
    v = (v * v_scale.view(1, 1, -1, 1)).transpose(1, 2).repeat_interleave(group, 1)
    scores = q @ k.mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    if causal:
        mask = mask.tril(k.shape[2] - q.shape[2])
    p = torch.softmax(scores.masked_fill(~mask, -math.inf), -1)
    p = p.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return (p @ v).transpose(1, 2)


def assert_close(out: Tensor, inputs: Inputs, causal: bool = True) -> None:
    """Complete, of the right form, and as accurate as promised."""
    expected = exact(inputs, causal)
    assert out.shape == expected.shape
    assert out.dtype == torch.float32 and out.is_contiguous()
    if out.numel() == 0:
        return
    error = out.double() - expected
    assert error.pow(2).mean().sqrt() <= RELATIVE_RMS * expected.pow(2).mean().sqrt()
    cpu_inputs = [t.cpu() for t in inputs]
    eager = problem.DequantisedSDPA(causal)(*cpu_inputs).double()
    rounding = torch.finfo(torch.float32).eps * expected.abs().max()
    bound = EAGER_FACTOR * (eager - expected.cpu()).abs().max() + 4 * rounding.cpu()
    assert error.abs().max().cpu() <= bound


def make(seed: int = 0, **sizes: Any) -> tuple[Inputs, bool]:
    torch.manual_seed(seed)
    return problem.get_inputs(**sizes), bool(sizes.get("causal", True))


def fused(inputs: Inputs) -> Inputs:
    """q, k and v as views of one (B, S, 3, H, D) tensor."""
    packed = torch.stack(inputs[:3], dim=2)
    return [packed[:, :, 0], packed[:, :, 1], packed[:, :, 2], *inputs[3:]]


def heads_first(inputs: Inputs) -> Inputs:
    return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs[:3]] + inputs[3:]


def inner_strided(inputs: Inputs) -> Inputs:
    return [t.mT.contiguous().mT for t in inputs[:3]] + inputs[3:]


def misaligned(inputs: Inputs) -> Inputs:
    """Storage offset of one byte, and rows with a gap of three."""
    views = []
    for t in inputs[:3]:
        wide = torch.full((*t.shape[:3], t.shape[3] + 3), 99, dtype=torch.int8, device=t.device)
        wide[..., 1 : 1 + t.shape[3]] = t
        views.append(wide[..., 1 : 1 + t.shape[3]])
    return views + inputs[3:]


def expanded(inputs: Inputs) -> Inputs:
    """One key and one value for all tokens: strides of 0, and uniform weights."""
    q, k, v = inputs[:3]
    return [q, k[:, :1].expand(k.shape), v[:, :1].expand(v.shape), *inputs[3:]]


def strided_scales(inputs: Inputs) -> Inputs:
    return inputs[:3] + [t.repeat_interleave(2)[::2] for t in inputs[3:]]


LAYOUTS: list[Callable[[Inputs], Inputs]] = [
    fused, heads_first, inner_strided, misaligned, expanded, strided_scales,
]  # fmt: skip

# Beyond CASES: tile edges of both kernels, head dimensions around every instance, long rows.
ODD: list[dict[str, Any]] = [
    {"batch": 1, "seq": 16, "heads": 1, "head_dim": 32},
    {"batch": 1, "seq": 17, "heads": 1, "head_dim": 31},
    {"batch": 1, "seq": 129, "heads": 2, "head_dim": 33},
    {"batch": 1, "seq": 130, "kv_seq": 257, "heads": 2, "head_dim": 2},
    {"batch": 2, "seq": 5, "kv_seq": 300, "heads": 4, "kv_heads": 2, "head_dim": 100},
    {"batch": 1, "seq": 70, "heads": 1, "head_dim": 192},
    {"batch": 1, "seq": 33, "kv_seq": 90, "heads": 2, "kv_heads": 1, "head_dim": 256},
    {"batch": 1, "seq": 30, "heads": 2, "head_dim": 250},
    {"batch": 1, "seq": 9, "kv_seq": 70, "heads": 4, "kv_heads": 2, "head_dim": 300},
    {"batch": 1, "seq": 40, "kv_seq": 10, "heads": 2, "head_dim": 513},
    {"batch": 1, "seq": 3, "heads": 1, "head_dim": 1500, "causal": False},
    {"batch": 1, "seq": 20, "kv_seq": 140, "heads": 2, "head_dim": 64, "causal": False},
    {"batch": 1, "seq": 60, "kv_seq": 31, "heads": 2, "head_dim": 48, "causal": False},
    {"batch": 1, "seq": 700, "heads": 1, "head_dim": 32},
    {"batch": 1, "seq": 3, "kv_seq": 5000, "heads": 2, "head_dim": 128},
]
# Enough rows for `attend_blocks` on a GPU with up to 144 multiprocessors.
BLOCKS: list[dict[str, Any]] = [
    {"batch": 2, "seq": 130, "heads": 34, "kv_heads": 17, "head_dim": 64},
    {"batch": 3, "seq": 193, "kv_seq": 150, "heads": 12, "head_dim": 128},
    {"batch": 2, "seq": 65, "kv_seq": 257, "heads": 40, "head_dim": 32, "causal": False},
]
WIDE_BLOCKS: list[dict[str, Any]] = [
    {"batch": 1, "seq": 140, "heads": 48, "head_dim": dim} for dim in (96, 192, 256)
]


def odd_id(sizes: dict[str, Any]) -> str:
    return "-".join(f"{key}{value}" for key, value in sizes.items())


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fresh memory holds NaN, so that an element that nobody wrote shows up."""
    before = torch.are_deterministic_algorithms_enabled()
    settings: Any = torch.utils.deterministic
    filled = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(before)
    settings.fill_uninitialized_memory = filled


@pytest.mark.parametrize("name", problem.CASES)
def test_reference(name: str) -> None:
    inputs, causal = make(**problem.CASES[name])
    doubles = inputs[:3] + [t.double() for t in inputs[3:]]
    loop = problem.Model(*problem.get_init_inputs(causal))(*doubles)
    assert loop.dtype == torch.float64
    torch.testing.assert_close(loop, exact(inputs, causal), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", problem.CASES)
def test_baseline_is_right(name: str) -> None:
    inputs, causal = make(**problem.CASES[name])
    for baseline in problem.BASELINES.values():
        out = baseline(causal)(*inputs)
        torch.testing.assert_close(
            out.double(), exact(inputs, causal), rtol=1e-4, atol=1e-4, check_stride=False
        )


def test_counts() -> None:
    assert problem.FLOPS() == 4 * 2 * 4 * 32 * (72 * 73 // 2)
    assert problem.FLOPS(seq=3, kv_seq=2, batch=1, heads=1, head_dim=1) == 4 * 3
    assert problem.BYTES() == 2 * 72 * 4 * 32 * (3 + 4) + 3 * 4 * 4


@pytest.mark.parametrize("name", problem.CASES)
def test_cpu_cases(name: str) -> None:
    inputs, causal = make(**problem.CASES[name])
    before = [t.clone() for t in inputs]
    out = cpu.ModelNew(*problem.get_init_inputs(causal))(*inputs)
    assert_close(out, inputs, causal)
    for now, then in zip(inputs, before, strict=True):
        assert torch.equal(now, then)
    torch.testing.assert_close(int8_attention(*inputs, causal=causal), out, rtol=0, atol=0)


@pytest.mark.parametrize("sizes", [*ODD, *BLOCKS], ids=odd_id)
def test_cpu_odd_shapes(sizes: dict[str, Any]) -> None:
    inputs, causal = make(1, **sizes)
    assert_close(int8_attention(*inputs, causal=causal), inputs, causal)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", [32, 37])
def test_cpu_layouts(layout: Callable[[Inputs], Inputs], dim: int) -> None:
    inputs = layout(make(batch=2, seq=21, heads=3, head_dim=dim)[0])
    assert_close(int8_attention(*inputs), inputs)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(threads: int) -> None:
    inputs, _ = make(batch=2, seq=150, heads=3, head_dim=64)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        outs = [int8_attention(*inputs) for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    assert_close(outs[0], inputs)
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


def check_scales(device: str) -> None:
    """Scales far outside the usual range, and the extremes of int8."""
    for dim in (32, 256, 300):
        for q_value in (0.0, 1e-30, -1e-25, -0.01, 10.0, -1e6, 1e20):
            inputs, _ = make(batch=1, seq=40, heads=2, head_dim=dim)
            inputs[3].fill_(q_value)
            inputs = [t.to(device) for t in inputs]
            out = int8_attention(*inputs).double()
            expected = exact(inputs)
            assert (out - expected).abs().max() <= RELATIVE_RMS * expected.abs().max()
        inputs[0].fill_(-128)
        inputs[1].fill_(-128)
        inputs[1][:, ::3].fill_(127)
        for q_value in (1e-4, -1e-4):
            inputs[3].fill_(q_value)
            assert_close(int8_attention(*inputs), inputs)
        inputs[3].fill_(0.01)
        inputs[3][1] = math.nan
        out = int8_attention(*inputs)
        assert out[:, :, 1].isnan().all() and not out[:, :, 0].isnan().any()
        inputs[3].fill_(0.01)
        inputs[5].zero_()
        assert (int8_attention(*inputs) == 0).all()


def test_cpu_scales() -> None:
    check_scales("cpu")


def check_sink(device: str) -> None:
    """One key takes nearly all weight; the rest must still be summed to full accuracy."""
    inputs, _ = make(batch=1, seq=1500, heads=1, head_dim=64)
    inputs[0].clamp_(min=1)
    inputs[1][:, 0] = 127
    inputs[3].fill_(0.002)
    inputs = [t.to(device) for t in inputs]
    assert_close(int8_attention(*inputs), inputs)


def test_cpu_sink() -> None:
    check_sink("cpu")


def test_scale_argument() -> None:
    inputs, _ = make(seq=20)
    for scale in (0.5, -0.3, 0.0, 1 / math.sqrt(32)):
        out = int8_attention(*inputs, scale=scale)
        assert (out - exact(inputs, scale=scale)).abs().max() <= 2e-6


@pytest.mark.parametrize(
    "shape", [(0, 4, 2, 8), (2, 0, 2, 8), (2, 4, 0, 8), (2, 4, 2, 0), (0, 0, 0, 0)]
)
def test_empty(shape: tuple[int, int, int, int]) -> None:
    x = torch.zeros(shape, dtype=torch.int8)
    s = torch.ones(shape[2])
    for impl in (None, "cpu", "reference"):
        assert int8_attention(x, x, x, s, s, s, impl=impl).shape == shape


def test_no_visible_key_gives_zeros() -> None:
    inputs, _ = make(batch=1, seq=9, kv_seq=4, heads=1, head_dim=8)
    for impl in ("cpu", "reference"):
        out = int8_attention(*inputs, impl=impl)
        assert (out[:, :5] == 0).all() and (out[:, 5:] != 0).any(dim=-1).all()


def test_impl_reference_is_differentiable() -> None:
    inputs, _ = make(batch=1, seq=5, heads=2, head_dim=4)
    for t in inputs[3:]:
        t.requires_grad_()
    int8_attention(*inputs, impl="reference").sum().backward()
    assert all(t.grad is not None for t in inputs[3:])


def replaced(index: int, value: Tensor) -> Inputs:
    inputs, _ = make(batch=1, seq=4, heads=4, kv_heads=2, head_dim=8)
    inputs[index] = value
    return inputs


@pytest.mark.parametrize(
    ("inputs", "error", "text"),
    [
        (replaced(0, torch.zeros(1, 4, 4, 8)), TypeError, "not torch.float32"),
        (replaced(3, torch.zeros(4).double()), TypeError, "not torch.float64"),
        (replaced(0, torch.zeros(4, 4, 8, dtype=torch.int8)), ValueError, r"\(4, 4, 8\)"),
        (replaced(2, torch.zeros(1, 5, 2, 8, dtype=torch.int8)), ValueError, r"\(1, 5, 2, 8\)"),
        (replaced(0, torch.zeros(2, 4, 4, 8, dtype=torch.int8)), ValueError, "agree in B"),
        (replaced(0, torch.zeros(1, 4, 3, 8, dtype=torch.int8)), ValueError, "3 heads of q"),
        (replaced(4, torch.zeros(4)), ValueError, r"k_scale and v_scale \(2,\)"),
        (replaced(5, torch.zeros(2, device="meta")), ValueError, "one device"),
    ],
)
def test_errors(inputs: Inputs, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        int8_attention(*inputs)


def test_argument_errors() -> None:
    inputs, _ = make(batch=1, seq=4, heads=2, head_dim=8)
    with pytest.raises(ValueError, match="impl is 'fast'"):
        int8_attention(*inputs, impl="fast")
    with pytest.raises(ValueError, match="needs tensors on a cuda device"):
        int8_attention(*inputs, impl="cuda")
    with pytest.raises(ValueError, match="scale is inf"):
        int8_attention(*inputs, scale=math.inf)
    wide = torch.zeros(1, 1, 1, contract.MAX_HEAD_DIM + 1, dtype=torch.int8)
    one = torch.ones(1)
    with pytest.raises(ValueError, match="65536"):
        int8_attention(wide, wide, wide, one, one, one)
    inputs[3].requires_grad_()
    with pytest.raises(RuntimeError, match="no gradient"):
        int8_attention(*inputs)
    with torch.no_grad():
        int8_attention(*inputs)


def test_opcheck() -> None:
    op = torch.ops.kernelproof.int8_attention.default
    torch.library.opcheck(op, (*fused(make(batch=1, seq=7)[0]), True, 0.25))
    grouped, _ = make(batch=1, seq=3, kv_heads=2, head_dim=5)
    torch.library.opcheck(op, (*grouped, False, 0.25))


def test_compile() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def twice(*inputs: Tensor) -> Tensor:
        return int8_attention(*inputs) * 2

    inputs, _ = make(seq=20)
    torch.testing.assert_close(twice(*inputs), int8_attention(*inputs) * 2, rtol=0, atol=0)


def plan(sizes: dict[str, Any], multiprocessors: int = 132) -> cuda.Plan | cuda_general.Plan:
    inputs, causal = make(**sizes)
    q, k, v = inputs[:3]
    shapes = q.shape, k.shape, q.stride(), k.stride(), v.stride()
    plain = cuda.plan_for(*shapes, 0, causal, 0.2, multiprocessors)
    return plain or cuda_general.plan_for(*shapes, 0, 0, False, True, 0, 0, multiprocessors)


def cuda_instances(cases: list[dict[str, Any]]) -> list[str]:
    names = set()
    for sizes in cases:
        inputs, _ = make(**sizes)
        if inputs[0].numel() and inputs[1].numel():
            names.add(plan(sizes).kernel.name)
    return sorted(names)


@pytest.mark.parametrize(
    ("arch", "cases"),
    [("sm_80", list(problem.CASES.values())), ("sm_90a", [*problem.CASES.values(), *ODD, *BLOCKS])],
    ids=["sm_80", "sm_90a"],
)
def test_cuda_compiles(arch: str, cases: list[dict[str, Any]]) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for name in cuda_instances(cases):
        general = name.startswith(("attend_general", "attend_rows", "attend_decode"))
        assert (cuda_general if general else cuda).kernel(name).compile(arch)


def test_cuda_plans() -> None:
    assert plan({}).kernel.name == "attend<32, 5, true, true, false, true>"
    assert plan({}).grid == (5, 4, 2) and plan({}).block == 160
    assert plan({"head_dim": 257}).kernel.name == "attend_rows"
    for sizes in BLOCKS:
        assert plan(sizes).kernel.name.startswith("attend_blocks")
        assert plan(sizes, 1000).kernel.name.startswith("attend<")
    for sizes in [*ODD, *BLOCKS, *WIDE_BLOCKS]:
        chosen = plan(sizes)
        if isinstance(chosen, cuda.Plan):
            assert chosen.grid[1] <= 65_535 and chosen.grid[2] <= 65_535
        assert chosen.block <= 1024 and chosen.shared <= 99 * 1024
    q, far = (1, 2**31, 1, 32), (2**36, 32, 32, 1)
    assert cuda.plan_for(q, q, far, far, far, 0, True, 1.0, 132) is None
    beyond = cuda_general.plan_for(q, q, far, far, far, 0, 0, False, True, 0, 0, 132)
    assert beyond.kernel.name == "attend_rows"


# ---- on a GPU ----


def on_gpu(inputs: Inputs) -> Inputs:
    return [t.cuda() for t in inputs]


@pytest.mark.gpu
@pytest.mark.parametrize("name", problem.CASES)
def test_gpu_cases(name: str) -> None:
    inputs, causal = make(**problem.CASES[name])
    inputs = on_gpu(inputs)
    before = [t.clone() for t in inputs]
    out = cuda.ModelNew(*problem.get_init_inputs(causal))(*inputs)
    assert_close(out, inputs, causal)
    for now, then in zip(inputs, before, strict=True):
        assert torch.equal(now, then)
    again = int8_attention(*inputs, causal=causal)
    assert torch.equal(out, again)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [*ODD, *BLOCKS, *WIDE_BLOCKS], ids=odd_id)
def test_gpu_odd_shapes(sizes: dict[str, Any]) -> None:
    inputs, causal = make(1, **sizes)
    inputs = on_gpu(inputs)
    assert_close(int8_attention(*inputs, causal=causal), inputs, causal)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dim", [32, 37, 128, 260])
def test_gpu_layouts(layout: Callable[[Inputs], Inputs], dim: int) -> None:
    inputs = layout(on_gpu(make(batch=2, seq=21, heads=3, head_dim=dim)[0]))
    assert_close(int8_attention(*inputs), inputs)


@pytest.mark.gpu
def test_gpu_scales() -> None:
    check_scales("cuda")


@pytest.mark.gpu
def test_gpu_sink() -> None:
    check_sink("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
def test_gpu_long(dim: int) -> None:
    """Truncation in the tensor cores' sums would grow with the length; it must not show."""
    inputs, _ = make(batch=1, seq=4096, heads=2, head_dim=dim)
    inputs = on_gpu(inputs)
    out, expected = int8_attention(*inputs).double(), exact(inputs)
    assert (out - expected).pow(2).mean().sqrt() <= RELATIVE_RMS * expected.pow(2).mean().sqrt()


@pytest.mark.gpu
def test_gpu_many_batches() -> None:
    inputs, _ = make(batch=70_000, seq=2, heads=1, head_dim=8)
    inputs = on_gpu(inputs)
    assert_close(int8_attention(*inputs), inputs)


@pytest.mark.gpu
def test_gpu_many_heads() -> None:
    inputs, _ = make(batch=1, seq=2, heads=70_000, head_dim=8)
    inputs = on_gpu(inputs)
    assert_close(int8_attention(*inputs), inputs)


@pytest.mark.gpu
def test_gpu_graph_and_stream() -> None:
    inputs = on_gpu(make()[0])
    expected = int8_attention(*inputs)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        int8_attention(*inputs)
        with torch.cuda.graph(graph, stream=stream):
            out = int8_attention(*inputs)
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [lambda inputs: inputs, fused], ids=["dense", "fused"])
def test_gpu_calls_of_a_seen_form(
    layout: Callable[[Inputs], Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quick way gives the same bits, is not taken for other forms, and errors stay errors."""
    monkeypatch.setattr(cuda_quick, "_forms", Forms())
    inputs = layout(on_gpu(make(seed=1)[0]))
    expected = int8_attention(*inputs)
    assert cuda_quick.quick(*inputs, True, None) is not None
    for seed in (2, 3):
        others = layout(on_gpu(make(seed=seed)[0]))
        assert_close(int8_attention(*others), others)
        assert_close(int8_attention(*others, causal=False), others, False)
    assert torch.equal(int8_attention(*inputs), expected)
    for form in (heads_first, misaligned, strided_scales, inner_strided):
        assert cuda_quick.quick(*form(inputs), True, None) is None
        assert_close(int8_attention(*form(inputs)), inputs)
    moved = torch.empty(inputs[0].numel() + 1, dtype=torch.int8, device="cuda")[1:]
    if inputs[0].is_contiguous():
        moved = moved.view(inputs[0].shape).copy_(inputs[0])
        assert cuda_quick.quick(moved, *inputs[1:], True, None) is None
        assert_close(int8_attention(moved, *inputs[1:]), inputs)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(int8_attention(*inputs), expected)
    with pytest.raises(RuntimeError, match="have no gradient"):
        int8_attention(*inputs[:3], inputs[3].clone().requires_grad_(), *inputs[4:])
    with pytest.raises(TypeError, match=r"must be torch\.int8"):
        int8_attention(inputs[0].float(), *inputs[1:])
    with pytest.raises(ValueError, match="must be"):
        int8_attention(*inputs[:5], inputs[5][:1])
    compiled = torch.compile(int8_attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), expected)
    seen: list[str] = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        int8_attention(*inputs)
    assert any("int8_attention" in name for name in seen)


@pytest.mark.gpu
def test_gpu_from_another_thread() -> None:
    """Threads have no CUDA context of their own until something makes one current."""
    inputs = on_gpu(make(seed=1)[0])
    others = on_gpu(make(seed=1, seq=33)[0])
    expected = int8_attention(*inputs)
    found: dict[str, Tensor] = {}

    def call() -> None:
        found["seen"] = int8_attention(*inputs)
        found["new"] = int8_attention(*others)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert torch.equal(found["seen"], expected)
    assert_close(found["new"], others)


@pytest.mark.gpu
def test_gpu_opcheck_and_compile() -> None:
    inputs = on_gpu(make(seq=20)[0])
    torch.library.opcheck(torch.ops.kernelproof.int8_attention.default, (*inputs, True, 0.25))
    compiled = torch.compile(int8_attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), int8_attention(*inputs))
