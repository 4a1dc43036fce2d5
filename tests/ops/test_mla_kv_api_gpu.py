"""mla_kv as an operator on a GPU: values within their bounds, gradients, capture, torch.compile."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_mla_kv_api import SIZES, awkward, exact, made, projected, shares_of_bound
from torch import Tensor

from kernelproof.ops.mla_kv import contract, explain, mla_kv

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Beside the odd ones: tiles of tensor cores, few and many tokens, a published head.
CUDA_SIZES = [
    *SIZES,
    (256, 48, 4, 32, 32, 8),
    (512, 128, 2, 128, 128, 64),
    (1024, 512, 4, 128, 128, 64),
    (2048, 512, 4, 128, 128, 64),
]


def on_gpu(t: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.cuda() for name, x in t.items()}


def on_cpu(outs: Any) -> list[Tensor]:
    return [x.cpu() for x in outs]


@pytest.mark.gpu
def test_gpu_values_are_within_their_bounds() -> None:
    wrong = []
    for sizes, dtype, tokens in itertools.product(CUDA_SIZES, DTYPES, (1, 17, 130)):
        t = made(sizes, (tokens,), dtype)
        there = on_gpu(t)
        for norm, accuracy in itertools.product((False, True), ("strict", "tf32")):
            if accuracy == "tf32" and dtype != torch.float32:
                continue
            found = projected(there, sizes, norm=norm, accuracy=accuracy)
            share = shares_of_bound(on_cpu(found), t, sizes, norm, accuracy)
            if not share <= 1:
                wrong.append((sizes, dtype, tokens, norm, accuracy, share))
    assert not wrong


@pytest.mark.gpu
def test_gpu_float64() -> None:
    for sizes, norm in itertools.product(SIZES, (False, True)):
        t = made(sizes, (40,), torch.float64)
        found = on_cpu(projected(on_gpu(t), sizes, norm=norm))
        for out, expected in zip(found, exact(t, sizes, norm, True), strict=True):
            torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
def test_gpu_strides_and_leading_axes() -> None:
    for sizes, dtype in itertools.product(CUDA_SIZES[:7], DTYPES):
        for leading in ((2, 3, 4, 2), (0, 3), (), (7,)):
            t = made(sizes, leading, dtype)
            there = {name: awkward(x.cuda()) for name, x in t.items()}
            spread = torch.full((2 * sizes[1],), float("nan"), dtype=dtype, device="cuda")
            there["norm_weight"] = spread[::2].copy_(t["norm_weight"])
            found = on_cpu(projected(there, sizes))
            assert [list(x.shape[:-2]) for x in found] == [list(leading)] * 2
            if found[0].numel():
                assert shares_of_bound(found, t, sizes, True, "strict") <= 1


@pytest.mark.gpu
def test_gpu_forms_of_the_weights() -> None:
    for sizes, dtype in itertools.product(CUDA_SIZES[:7], DTYPES):
        _, rank, heads, k_dim, v_dim, _ = sizes
        t = made(sizes, (33,), dtype)
        there = on_gpu(t)
        both = there["packed"].view(rank, heads, k_dim + v_dim)
        k, v = both[..., :k_dim].flatten(1), both[..., k_dim:].flatten(1)
        extra: dict[str, Any] = dict(
            kv_heads=heads, norm_weight=there["norm_weight"], k_pe=there["k_pe"], layout="split"
        )
        linear = there["w_down"].t().contiguous()
        for found in (
            mla_kv(there["hidden"], there["w_down"], k, v, **extra),
            mla_kv(there["hidden"], linear, k.t().contiguous(), v.t().contiguous(),
                   weights="out_in", **extra),
            mla_kv(there["hidden"], linear, there["packed"].t().contiguous(), k_dim=k_dim,
                   weights="out_in", **extra),
        ):  # fmt: skip
            assert shares_of_bound(on_cpu(found), t, sizes, True, "strict") <= 1


@pytest.mark.gpu
def test_gpu_gradients() -> None:
    """As far from float64 as the reference's, whose products may not use TF32 either."""
    before = torch.get_float32_matmul_precision()
    for sizes, dtype, allowed in itertools.product(SIZES, DTYPES, ("highest", "high")):
        t = made(sizes, (40,), dtype)
        wide = on_gpu({name: x.double() for name, x in t.items()})
        torch.set_float32_matmul_precision("highest")
        eager = gradients_at(lambda g: projected(g, sizes, impl="reference"), on_gpu(t))  # noqa: B023
        truth = gradients_at(lambda g: exact(g, sizes, True, True), wide, dtype)  # noqa: B023
        try:
            torch.set_float32_matmul_precision(allowed)
            ours = gradients_at(lambda g: projected(g, sizes), on_gpu(t))  # noqa: B023
        finally:
            torch.set_float32_matmul_precision(before)
        for name, a, b, c in zip(t, ours, eager, truth, strict=True):
            error, limit = (a.double() - c).abs().max(), (b.double() - c).abs().max()
            floor = 8 * torch.finfo(dtype).eps * max(1.0, float(c.abs().max()))
            assert error <= 2 * limit + floor, (sizes, dtype, allowed, name, error, limit)


def gradients_at(run: Any, t: dict[str, Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
    """Gradients under one set of cotangents, which ``dtype`` can hold."""
    given = {name: x.detach().clone().requires_grad_() for name, x in t.items()}
    outs = run(given)
    torch.manual_seed(3)
    cotangents = [torch.randn(o.shape).to(dtype or o.dtype).to(o) for o in outs]
    return list(torch.autograd.grad(outs, list(given.values()), cotangents))


@pytest.mark.gpu
def test_gpu_opcheck() -> None:
    for sizes, extras in (((6, 5, 2, 3, 4, 1), True), ((6, 5, 2, 3, 3, 1), False)):
        for grad in (False, True):
            t = {n: x.cuda().requires_grad_(grad) for n, x in made(sizes, (2, 3)).items()}
            both = t["packed"].view(5, 2, -1)
            some: tuple[Any, ...] = (t["hidden"], t["w_down"], both[..., :3], both[..., 3:], 2)
            if extras:
                some = (*some, t["norm_weight"], 1e-5, t["k_pe"], "strict")
            for op in (contract.mla_kv_op, contract.mla_kv_split_op):
                torch.library.opcheck(op, some)


@pytest.mark.gpu
def test_gpu_compile_serves_every_number_of_tokens() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    def layer(t: dict[str, Tensor]) -> Tensor:
        k, v = projected(t, SIZES[2])
        return (k * 2).sum(dim=-1) + v.sum(dim=-1)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for tokens in (7, 12, 30, 101):
        t = on_gpu(made(SIZES[2], (2, tokens)))
        t["hidden"].requires_grad_()
        for name in ("hidden", "k_pe"):
            torch._dynamo.mark_dynamic(t[name], 1)
        out, expected = compiled(t), layer(t)
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
        (ours,) = torch.autograd.grad(out.square().sum(), t["hidden"])
        (theirs,) = torch.autograd.grad(expected.square().sum(), t["hidden"])
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    assert counter.frame_count == 1


@pytest.mark.gpu
def test_gpu_stream_and_graph() -> None:
    for sizes, dtype, tokens in itertools.product(CUDA_SIZES[5:], DTYPES, (1, 16, 300)):
        t = on_gpu(made(sizes, (tokens,), dtype))
        expected = projected(t, sizes)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for a, b in zip(projected(t, sizes), expected, strict=True):
                assert torch.equal(a, b)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scaled = {**t, "hidden": t["hidden"] * 1}  # a kernel just before
            found = projected(scaled, sizes)
        for _ in range(3):
            for out in found:
                out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.gpu
def test_gpu_explain() -> None:
    t = on_gpu(made(SIZES[2], (16,)))
    text = explain(t["hidden"], t["w_down"], t["packed"], kv_heads=3, k_dim=70)
    assert len(text) > 20


@pytest.mark.gpu
def test_gpu_kinds_are_checked() -> None:
    t = on_gpu(made())
    with pytest.raises(TypeError, match=r"w_down is torch\.float64"):
        projected({**t, "w_down": t["w_down"].double()}, SIZES[0])
    with pytest.raises(ValueError, match="norm_weight is on cpu"):
        projected({**t, "norm_weight": t["norm_weight"].cpu()}, SIZES[0])
    with pytest.raises(ValueError, match="norm_weight has shape"):
        projected({**t, "norm_weight": t["norm_weight"][:-1]}, SIZES[0])
