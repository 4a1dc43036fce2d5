"""mla_kv: values against float64, layouts and contract. The CUDA kernels: test_mla_kv_cuda.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelproof.ops.mla_kv import contract, cpu, mla_kv, problem

# Beside CASES: sizes around the register tiles (8 or 4 tokens, 48 or 24 columns, 128 terms), the
# block of 96 tokens, and shapes where threads share the columns.
ODD_SIZES: list[dict[str, int]] = [
    dict(batch=1, seq=7, model=3, rank=2, kv_heads=1, head_dim=5),
    dict(batch=1, seq=15, model=129, rank=47, kv_heads=1, head_dim=47),
    dict(batch=1, seq=97, model=128, rank=17, kv_heads=2, head_dim=24),
    dict(batch=2, seq=193, model=31, rank=33, kv_heads=5, head_dim=13),
    dict(batch=1, seq=3, model=700, rank=130, kv_heads=3, head_dim=171),
    dict(batch=2, seq=3, model=0, rank=4, kv_heads=1, head_dim=8),
    dict(batch=2, seq=3, model=4, rank=0, kv_heads=1, head_dim=8),
    dict(batch=2, seq=3, model=4, rank=4, kv_heads=2, head_dim=0),
    dict(batch=0, seq=3, model=4, rank=4, kv_heads=2, head_dim=2),
]
ALL_SIZES = [*problem.CASES.values(), *ODD_SIZES]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
LAYOUTS = ["transposed_weights", "sliced", "every_other_token", "expanded", "model_first"]


def inputs(seed: int = 0, dtype: torch.dtype = torch.float32, **sizes: Any) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return problem.get_inputs(**sizes, dtype=dtype)


def relaid(operands: list[torch.Tensor], layout: str) -> list[torch.Tensor]:
    """The same values (but for "expanded", which repeats a sequence) at other strides."""
    hidden, *weights = operands
    if layout == "transposed_weights":
        weights = [w.t().contiguous().t() for w in weights]
    elif layout == "sliced":
        hidden = padded(hidden)
        weights = [padded(w) for w in weights]
    elif layout == "every_other_token":
        hidden = torch.stack((hidden, hidden), dim=2).flatten(1, 2)[:, ::2]
        weights = [torch.stack((w, w), dim=2).flatten(1, 2)[:, ::2] for w in weights]
    elif layout == "expanded":
        hidden = hidden[:1].expand(hidden.shape)
    elif layout == "model_first":
        hidden = hidden.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    return [hidden, *weights]


def padded(t: torch.Tensor) -> torch.Tensor:
    """``t`` inside a NaN-filled tensor, at an odd offset."""
    room = torch.full([n + 5 for n in t.shape], float("nan"), dtype=t.dtype, device=t.device)
    inside = room[tuple(slice(3, 3 + n) for n in t.shape)]
    return inside.copy_(t)


def check(out: torch.Tensor, operands: list[torch.Tensor], heads: int) -> None:
    """At most twice the error of the eager reference, and never NaN.

    The floor is four units of roundoff of the largest output: where sums are short, both results
    are a few roundings away and the ratio means nothing. In float64 the exact result is itself
    rounded, and eager repeats its very roundings: there the floor is all there is.
    """
    model = problem.Model(heads)
    exact = model(*[t.double().cpu() for t in operands])
    assert out.shape == exact.shape
    assert out.dtype == operands[0].dtype
    assert out.is_contiguous()
    if not out.numel():
        return
    eager = (model(*[t.cpu() for t in operands]).double() - exact).abs()
    error = (out.double().cpu() - exact).abs()
    units = 64 if out.dtype == torch.float64 else 4
    floor = units * torch.finfo(out.dtype).eps * exact.abs().max()
    assert error.max() <= 2 * eager.max() + floor
    assert error.square().mean() <= 2 * eager.square().mean() + floor**2


def heads_of(sizes: dict[str, Any]) -> int:
    return int(sizes.get("kv_heads", 4))


@pytest.fixture(autouse=True)
def poison() -> Any:
    """New tensors start as NaN: an element that a kernel does not write cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("sizes", ALL_SIZES, ids=str)
def test_cpu_values(sizes: dict[str, Any]) -> None:
    operands = inputs(**sizes)
    check(mla_kv(*operands, kv_heads=heads_of(sizes)), operands, heads_of(sizes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["founding", "odd", "one_over", "deep_rank"])
def test_cpu_dtypes(name: str, dtype: torch.dtype) -> None:
    sizes = problem.CASES[name]
    operands = inputs(dtype=dtype, **sizes)
    if dtype == torch.float16:
        operands = [
            operands[0] / 16,
            *operands[1:],
        ]  # the latents of the reference must not overflow
    check(mla_kv(*operands, kv_heads=heads_of(sizes)), operands, heads_of(sizes))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sizes", [problem.CASES["odd"], problem.CASES["founding"], ODD_SIZES[4]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cpu_layouts(layout: str, sizes: dict[str, Any], dtype: torch.dtype) -> None:
    operands = relaid(inputs(dtype=dtype, **sizes), layout)
    check(mla_kv(*operands, kv_heads=heads_of(sizes)), operands, heads_of(sizes))


@pytest.mark.parametrize("name", ["founding", "decode", "one_token", "tail_token"])
def test_cpu_threads(name: str) -> None:
    """One, two and three threads give the same bits."""
    sizes = problem.CASES[name]
    operands = inputs(**sizes)
    before = torch.get_num_threads()
    outs = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            outs.append(mla_kv(*operands, kv_heads=heads_of(sizes)))
    finally:
        torch.set_num_threads(before)
    check(outs[0], operands, heads_of(sizes))
    assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("leading", [(), (5,), (2, 3, 4, 5)])
def test_leading_axes_are_kept(leading: tuple[int, ...]) -> None:
    hidden, *weights = inputs(batch=1, seq=120, model=16, rank=6)
    count = 1
    for n in leading:
        count *= n
    rows = hidden[0, :count]
    out = mla_kv(rows.view(*leading, 16), *weights, kv_heads=4)
    assert out.shape == (*leading, 2, 4, 32)
    flat = mla_kv(rows, *weights, kv_heads=4)
    assert torch.equal(out.view(count, 2, 4, 32), flat)
    reference = mla_kv(rows.view(*leading, 16), *weights, kv_heads=4, impl="reference")
    torch.testing.assert_close(out, reference, rtol=1e-4, atol=1e-4)


def test_leading_axes_that_do_not_merge() -> None:
    hidden, *weights = inputs(batch=1, seq=120, model=16, rank=6)
    rows = hidden.view(2, 3, 4, 5, 16).permute(3, 1, 2, 0, 4)
    out = mla_kv(rows, *weights, kv_heads=4)
    assert torch.equal(out, mla_kv(rows.contiguous(), *weights, kv_heads=4))


def test_infinities_stay_in_their_token() -> None:
    operands = inputs(**problem.CASES["odd"])
    operands[0][1, 2, 3] = float("inf")
    operands[0][2, 4, 5] = float("nan")
    out, reference = mla_kv(*operands, kv_heads=3), problem.Model(3)(*operands)
    torch.testing.assert_close(out, reference, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_half_conversions_cover_every_value() -> None:
    """One term, weights 1: the output is the input, whatever its bits."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        hidden = every.view(dtype).view(-1, 1)
        one = torch.ones(1, 1, dtype=dtype)
        out = mla_kv(hidden, one, one, one, kv_heads=1)
        assert torch.equal(out[:, 0].flatten().nan_to_num(), hidden.flatten().nan_to_num())
        assert torch.equal(out[:, 1].isnan().flatten(), hidden.isnan().flatten())


def test_half_results_round_to_nearest_even() -> None:
    torch.manual_seed(0)
    spread = torch.randn(4096, 1) * torch.exp2(torch.randint(-20, 17, (4096, 1)).float())
    for dtype in (torch.float16, torch.bfloat16):
        hidden = spread.to(dtype)
        weight = torch.full((1, 1), 1.1484375, dtype=dtype)
        one = torch.ones(1, 1, dtype=dtype)
        expected = (hidden.float() * weight.float()).to(dtype).flatten()
        out = mla_kv(hidden, weight, one, one, kv_heads=1)
        assert torch.equal(out[:, 0].flatten(), expected)


def test_inputs_are_not_modified() -> None:
    operands = inputs(**problem.CASES["odd"])
    copies = [t.clone() for t in operands]
    mla_kv(*operands, kv_heads=3)
    assert all(torch.equal(a, b) for a, b in zip(operands, copies, strict=True))


def test_results_repeat_bitwise() -> None:
    operands = inputs()
    assert torch.equal(mla_kv(*operands, kv_heads=4), mla_kv(*operands, kv_heads=4))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(hidden=torch.zeros(2, 3, 5)), ValueError, "needs 5 rows"),
        (dict(hidden=torch.zeros(())), ValueError, "scalar"),
        (dict(w_down=torch.zeros(4)), ValueError, "must be a matrix"),
        (dict(w_up_k=torch.zeros(6, 9)), ValueError, "divisor of the 9 columns of w_up_k"),
        (dict(w_up_k=torch.zeros(6, 10)), ValueError, "cannot be stacked"),
        (dict(w_up_k=torch.zeros(5, 8), w_up_v=torch.zeros(5, 8)), ValueError, "R = 6"),
        (dict(kv_heads=3), ValueError, "positive divisor of the 8"),
        (dict(kv_heads=0), ValueError, "positive divisor"),
        (dict(w_down=torch.zeros(4, 6).double()), TypeError, "one dtype"),
        (dict(hidden=torch.zeros(2, 3, 4).int()), TypeError, "accepted are torch.float32"),
        (dict(w_up_v=torch.zeros(6, 8, device="meta")), ValueError, "w_up_v is on meta"),
        (dict(impl="gpu"), ValueError, "accepted are None, 'cpu', 'cuda', 'reference'"),
        (dict(impl="cuda"), ValueError, "impl='cuda'"),
        (dict(impl="triton"), ValueError, "no Triton kernel"),
    ],
)
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = dict(
        hidden=torch.zeros(2, 3, 4), w_down=torch.zeros(4, 6), w_up_k=torch.zeros(6, 8),
        w_up_v=torch.zeros(6, 8), kv_heads=2,
    )  # fmt: skip
    with pytest.raises(error, match=words):
        mla_kv(**{**arguments, **change})


def test_the_operator_checks_its_operands() -> None:
    short = torch.zeros(3, 6)
    with pytest.raises(ValueError, match="needs 4 rows"):
        contract.mla_kv_op(torch.zeros(2, 4), short, torch.zeros(6, 8), torch.zeros(6, 8), 2)


def test_reference_has_gradients() -> None:
    operands = [t.requires_grad_() for t in inputs(batch=1, seq=2, model=3, rank=2, head_dim=1)]
    mla_kv(*operands, kv_heads=4, impl="reference").sum().backward()
    assert all(t.grad is not None for t in operands)
    with torch.no_grad():
        assert not mla_kv(*operands, kv_heads=4).requires_grad


@pytest.mark.parametrize("name", ["odd", "no_tokens", "one_token"])
def test_opcheck(name: str) -> None:
    sizes = problem.CASES[name]
    torch.library.opcheck(contract.mla_kv_op, (*inputs(**sizes), heads_of(sizes)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_torch_compile(dynamic: bool) -> None:
    def layer(hidden: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return mla_kv(hidden + 1, *weights, kv_heads=3).sum(dim=0)

    operands = inputs(**problem.CASES["odd"])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert torch.equal(compiled(*operands), layer(*operands))


def test_modules_take_the_cases() -> None:
    sizes = problem.CASES["odd"]
    operands = inputs(**sizes)
    reference = problem.Model(3)(*operands)
    modules = [cpu.ModelNew, *problem.BASELINES.values()]
    for module in modules:
        torch.testing.assert_close(module(3)(*operands), reference, rtol=1e-4, atol=1e-4)
    assert problem.FLOPS(**sizes) == 2 * 21 * 19 * (61 + 2 * 33)
    counted = sum(t.nbytes for t in operands) + reference.nbytes
    assert problem.BYTES(**sizes) == counted
