"""mla_kv in a model: forms of weights, norm, rotary part, gradients, torch.compile."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof import ops
from kernelproof.errors import UnsupportedError
from kernelproof.ops.mla_kv import backward, bounds, contract, cpu, explain, library, mla_kv

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
# M, R, H, Dk, Dv, P: odd ones, one head, heads within and across the kernel's panels of columns.
SIZES = [
    (61, 19, 3, 11, 13, 5),
    (64, 130, 2, 64, 24, 8),
    (256, 150, 3, 70, 70, 6),
    (33, 48, 1, 32, 40, 8),
    (1, 1, 1, 1, 1, 1),
]


def made(
    sizes: tuple[int, ...] = SIZES[0],
    leading: tuple[int, ...] = (2, 5),
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Operands of about unit size: hidden, w_down, the packed weight, norm_weight and k_pe."""
    model, rank, heads, k_dim, v_dim, rope = sizes
    torch.manual_seed(seed)
    drawn = dict(
        hidden=torch.randn(*leading, model),
        w_down=torch.randn(model, rank) / max(model, 1) ** 0.5,
        packed=torch.randn(rank, heads * (k_dim + v_dim)) / max(rank, 1) ** 0.5,
        norm_weight=1 + torch.randn(rank) / 4,
        k_pe=torch.randn(*leading, 1, rope),
    )
    return {name: t.to(dtype) for name, t in drawn.items()}


def exact(t: dict[str, Tensor], sizes: tuple[int, ...], norm: bool, rope: bool) -> list[Tensor]:
    """Keys and values in float64, written without the operator's own code."""
    wide = {name: x.double() for name, x in t.items()}
    _, _, heads, k_dim, v_dim, _ = sizes
    latent = wide["hidden"] @ wide["w_down"]
    if norm:
        mean = (latent * latent).mean(-1, keepdim=True)
        latent = latent / (mean + 1e-6).sqrt() * wide["norm_weight"]
    both = (latent @ wide["packed"]).unflatten(-1, (heads, k_dim + v_dim))
    k, v = both[..., :k_dim], both[..., k_dim:]
    if rope:
        k = torch.cat((k, wide["k_pe"].expand(*k.shape[:-1], -1)), dim=-1)
    return [k, v]


def projected(
    t: dict[str, Tensor], sizes: tuple[int, ...], norm: bool = True, rope: bool = True, **how: Any
) -> tuple[Tensor, Tensor]:
    return mla_kv(
        t["hidden"], t["w_down"], t["packed"], kv_heads=sizes[2], k_dim=sizes[3],
        norm_weight=t["norm_weight"] if norm else None, k_pe=t["k_pe"] if rope else None,
        layout="split", **how,
    )  # fmt: skip


def close(found: tuple[Tensor, ...], truth: list[Tensor], units: float = 8) -> None:
    for out, expected in zip(found, truth, strict=True):
        assert out.shape == expected.shape and out.is_contiguous()
        if out.numel():
            limit = (
                units * torch.finfo(out.dtype).eps * max(1.0, float(expected.detach().abs().max()))
            )
            assert (out.double() - expected).abs().max() <= limit


@pytest.fixture(autouse=True)
def poison() -> Any:
    """New tensors start as NaN: an element that a kernel does not write cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# -- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructions", [*cpu.INSTRUCTION_SETS, "native"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_instruction_set(instructions: str, dtype: torch.dtype) -> None:
    if instructions not in cpu.instruction_sets():
        pytest.skip(f"this CPU has no {instructions}")
    for sizes, leading in itertools.product(SIZES, [(2, 5), (100,), ()]):
        t = made(sizes, leading, dtype)
        _, rank, heads, k_dim, v_dim, _ = sizes
        both = t["packed"].view(rank, heads, k_dim + v_dim)
        for norm, rope in itertools.product((False, True), repeat=2):
            found = cpu.project_cpu(
                t["hidden"], t["w_down"], both[..., :k_dim], both[..., k_dim:], kv_heads=heads,
                norm_weight=t["norm_weight"] if norm else None, k_pe=t["k_pe"] if rope else None,
                layout="split", instructions=instructions,
            )  # fmt: skip
            close(tuple(found), exact(t, sizes, norm, rope), 64 if dtype == torch.float64 else 8)


@pytest.mark.parametrize("instructions", [*cpu.INSTRUCTION_SETS, "native"])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_few_tokens_with_linear_weights(instructions: str, tokens: int) -> None:
    """Up to two tokens go without turning the weights; the same bits on any number of threads."""
    if instructions not in cpu.instruction_sets():
        pytest.skip(f"this CPU has no {instructions}")
    before = torch.get_num_threads()
    for sizes, dtype in itertools.product([*SIZES, (700, 300, 4, 150, 70, 6)], DTYPES[:2]):
        _, rank, heads, k_dim, v_dim, _ = sizes
        t = made(sizes, (tokens,), dtype)
        both = t["packed"].t().contiguous().t().view(rank, heads, k_dim + v_dim)
        found: list[Any] = []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found.append(cpu.project_cpu(
                    t["hidden"], t["w_down"].t().contiguous().t(), both[..., :k_dim],
                    both[..., k_dim:], kv_heads=heads, norm_weight=t["norm_weight"],
                    k_pe=t["k_pe"], layout="split", instructions=instructions,
                ))  # fmt: skip
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert shares_of_bound(found[0], t, sizes, True, "strict") <= 1


def test_an_instruction_set_that_is_not_there() -> None:
    t = made()
    with pytest.raises(UnsupportedError, match="'avx1024' is not among this CPU's"):
        cpu.project_cpu(
            t["hidden"], t["w_down"], t["packed"], t["packed"], kv_heads=3, instructions="avx1024"
        )


def test_forms_of_the_weights_give_the_same_bits() -> None:
    for sizes in SIZES:
        t = made(sizes)
        _, rank, heads, k_dim, v_dim, _ = sizes
        whole = projected(t, sizes)
        both = t["packed"].view(rank, heads, k_dim + v_dim)
        k, v = both[..., :k_dim].flatten(1), both[..., k_dim:].flatten(1)
        extra: dict[str, Any] = dict(
            kv_heads=heads, norm_weight=t["norm_weight"], k_pe=t["k_pe"], layout="split"
        )
        linear = t["w_down"].t().contiguous()
        others = [
            mla_kv(t["hidden"], t["w_down"], k, v, **extra),
            mla_kv(t["hidden"], t["w_down"], both, k_dim=k_dim, **extra),
            mla_kv(
                t["hidden"], linear, k.t().contiguous(), v.t().contiguous(), weights="out_in",
                **extra,
            ),
            mla_kv(
                t["hidden"], linear, t["packed"].t().contiguous(), k_dim=k_dim, weights="out_in",
                **extra,
            ),
            mla_kv(
                t["hidden"], linear, both.permute(1, 2, 0).contiguous(), k_dim=k_dim,
                weights="out_in", **extra,
            ),
        ]  # fmt: skip
        for other in others:
            assert torch.equal(other[0], whole[0]) and torch.equal(other[1], whole[1])


def test_stacked_is_split_joined() -> None:
    sizes = (61, 19, 3, 11, 16, 5)
    t = made(sizes)
    both = t["packed"].view(19, 3, 27)
    extra: dict[str, Any] = dict(kv_heads=3, norm_weight=t["norm_weight"], k_pe=t["k_pe"])
    for impl in (None, "reference"):
        k, v = mla_kv(t["hidden"], t["w_down"], both, k_dim=11, layout="split", impl=impl, **extra)
        out = mla_kv(t["hidden"], t["w_down"], both, k_dim=11, impl=impl, **extra)
        assert torch.equal(out, torch.stack((k, v), dim=2))


@pytest.mark.parametrize("leading", [(0,), (0, 3), (2, 0, 3), (1,), (2, 3, 4, 5), ()])
def test_leading_axes(leading: tuple[int, ...]) -> None:
    t = made(leading=leading)
    close(projected(t, SIZES[0]), exact(t, SIZES[0], True, True))
    close(projected(t, SIZES[0], impl="reference"), exact(t, SIZES[0], True, True), 32)


EMPTY = [
    (0, 4, 2, 4, 3, 2), (4, 0, 2, 4, 3, 2), (4, 3, 2, 0, 3, 2), (4, 3, 2, 4, 0, 2),
    (4, 3, 2, 4, 3, 0), (4, 3, 2, 0, 0, 0),
]  # fmt: skip


@pytest.mark.parametrize("sizes", EMPTY)
def test_sizes_of_zero(sizes: tuple[int, ...]) -> None:
    t = {name: x.requires_grad_() for name, x in made(sizes).items()}
    close(projected(t, sizes, norm=sizes[1] > 0), exact(t, sizes, sizes[1] > 0, True))
    sum(x.sum() for x in projected(t, sizes)).backward()
    assert all(x.grad is not None and x.grad.shape == x.shape for x in t.values())


def awkward(t: Tensor) -> Tensor:
    """The same values between gaps, the leading axes in another order of memory."""
    room = torch.full(
        [*t.shape[:-1], t.shape[-1] + 3], float("nan"), dtype=t.dtype, device=t.device
    )
    order = list(range(t.dim() - 1))[::-1]
    room = room.permute(*order, -1).contiguous().permute(*order, -1)
    return room[..., 1:-2].copy_(t)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_strides_are_read_in_place(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """No operand is copied: the kernel is given the caller's own addresses."""
    t = made(leading=(2, 3, 4, 2), dtype=dtype)
    spread = {name: awkward(x) for name, x in t.items()}
    kernel, plan = cpu._functions(dtype, None)
    given: list[int] = []

    def watched(pointers: Any, *rest: Any) -> int:
        given.extend(pointers)
        return kernel(pointers, *rest)

    monkeypatch.setattr(cpu, "_functions", lambda *_: (watched, plan))
    assert not spread["hidden"].is_contiguous()
    found = projected(spread, SIZES[0])
    close(found, exact(t, SIZES[0], True, True))
    operands = [spread[n] for n in ("hidden", "w_down", "packed", "packed", "norm_weight", "k_pe")]
    addresses = [x.data_ptr() for x in operands]
    addresses[3] += SIZES[0][3] * dtype.itemsize
    assert given[:6] == addresses


def test_expanded_and_reversed_axes() -> None:
    t = made(leading=(3, 4))
    t["hidden"] = t["hidden"][:1].expand(3, 4, -1)
    t["k_pe"] = t["k_pe"][:, :1].expand(3, 4, 1, -1)
    t["norm_weight"] = t["norm_weight"][:1].expand(19)
    close(projected(t, SIZES[0]), exact(t, SIZES[0], True, True))
    columns = {name: x.movedim(-1, 0).contiguous().movedim(0, -1) for name, x in t.items()}
    close(projected(columns, SIZES[0]), exact(t, SIZES[0], True, True))


def test_norm_of_large_and_small_latents() -> None:
    """The squares of a float32 latent may overflow, and eps may be larger than they are."""
    t = made()
    for scale in (1e25, 1e-20):
        scaled = {**t, "hidden": t["hidden"] * scale}
        truth = exact(scaled, SIZES[0], True, False)
        k, v = projected(scaled, SIZES[0], rope=False)
        limits = [1e-5 * float(x.abs().max()) for x in truth]
        torch.testing.assert_close(k.double(), truth[0], rtol=1e-4, atol=limits[0])
        torch.testing.assert_close(v.double(), truth[1], rtol=1e-4, atol=limits[1])


def test_the_default_device_does_not_matter() -> None:
    t = made()
    with torch.device("meta"):
        found = projected(t, SIZES[0])
    assert [x.device.type for x in found] == ["cpu", "cpu"]
    close(found, exact(t, SIZES[0], True, True))


def test_threads_change_no_bits() -> None:
    sizes = (700, 200, 3, 70, 50, 6)
    t = made(sizes, (150,))
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(projected(t, sizes))
    finally:
        torch.set_num_threads(before)
    close(found[0], exact(t, sizes, True, True), 16)
    for k, v in found[1:]:
        assert torch.equal(k, found[0][0]) and torch.equal(v, found[0][1])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("layout", ["stacked", "split"])
def test_library_products(packed: bool, layout: str) -> None:
    """What large bfloat16 problems take on some CPUs, whether or not this is one."""
    sizes = (61, 19, 3, 11, 16, 5)
    t = made(sizes, dtype=torch.bfloat16)
    both = t["packed"].view(19, 3, 27)
    k, v = both[..., :11], both[..., 11:]
    assert library.packed(k, v, 3) is not None
    if not packed:
        k, v = k.flatten(1), v.flatten(1)
        assert library.packed(k, v, 3) is None
    found = library.project_library(
        t["hidden"], t["w_down"], k, v, kv_heads=3, norm_weight=t["norm_weight"], norm_eps=1e-6,
        k_pe=t["k_pe"], layout=layout,
    )  # fmt: skip
    outs = found.unbind(2) if isinstance(found, Tensor) else found
    truth = exact(t, sizes, True, True)
    for out, expected in zip(outs, truth, strict=True):
        torch.testing.assert_close(out.double(), expected, rtol=0.05, atol=0.05)


def test_packed_is_found_only_where_it_is() -> None:
    both = torch.randn(6, 2, 7)
    k, v = both[..., :3], both[..., 3:]
    found = library.packed(k, v, 2)
    assert found is not None and torch.equal(found, both.flatten(1))
    assert library.packed(v, k, 2) is None
    assert library.packed(k, both[..., 4:], 2) is None
    assert library.packed(k, torch.randn(6, 2, 7)[..., 3:], 2) is None
    assert library.packed(k.contiguous(), v, 2) is None


# -- bounds ----------------------------------------------------------------------------------------


def shares_of_bound(
    found: Any, t: dict[str, Tensor], sizes: tuple[int, ...], norm: bool, accuracy: str
) -> float:
    """The largest error as a share of its bound; the rotary part, a copy, must be exact."""
    both = t["packed"].view(sizes[1], sizes[2], -1)
    limits = bounds.error_bounds(
        t["hidden"], t["w_down"], both[..., : sizes[3]], both[..., sizes[3] :], kv_heads=sizes[2],
        norm_weight=t["norm_weight"] if norm else None, k_pe=t["k_pe"], accuracy=accuracy,
    )  # fmt: skip
    shares = [0.0]
    for out, expected, limit in zip(found, exact(t, sizes, norm, True), limits, strict=True):
        error = (out.double() - expected).abs()
        assert limit.shape == error.shape and (error[limit == 0] == 0).all()
        shares.append(float((error / limit)[limit > 0].max()))
    return max(shares)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_errors_are_within_their_bound(dtype: torch.dtype, norm: bool) -> None:
    for sizes in [*SIZES, (700, 200, 3, 70, 50, 6)]:
        t = made(sizes, (50,), dtype)
        share = shares_of_bound(projected(t, sizes, norm=norm), t, sizes, norm, "strict")
        assert share <= 1
        share = shares_of_bound(
            projected(t, sizes, norm=norm, impl="reference"), t, sizes, norm, "strict"
        )
        assert share <= 1


def rounded(t: Tensor, bits: int) -> Tensor:
    """float32 numbers with ``bits`` significant ones, to nearest (Dekker's splitting)."""
    wide = t * (2.0 ** (24 - bits) + 1)
    return wide - (wide - t)


def test_each_bound_excludes_the_next_coarser_arithmetic() -> None:
    """Products of operands rounded to TF32 pass as "tf32" and not as "strict"; of bfloat16, not as
    "tf32". Sums are short: a worst case over many terms is far from what happens."""
    sizes = (2, 2, 64, 4, 4, 1)
    t = made(sizes, (500,))
    shares = {}
    for name, bits in (("tf32", 11), ("bf16", 8)):
        latent = rounded(t["hidden"], bits) @ rounded(t["w_down"], bits)
        both = (rounded(latent, bits) @ rounded(t["packed"], bits)).unflatten(-1, (64, 8))
        k = torch.cat((both[..., :4], t["k_pe"].expand(500, 64, 1)), dim=-1)
        for accuracy in ("strict", "tf32"):
            found = (k, both[..., 4:])
            shares[name, accuracy] = shares_of_bound(found, t, sizes, False, accuracy)
    assert shares["tf32", "strict"] > 10
    assert shares["tf32", "tf32"] <= 1
    assert shares["bf16", "tf32"] > 1


# -- gradients -------------------------------------------------------------------------------------


def gradients(run: Callable[..., Any], t: dict[str, Tensor], seed: int = 3) -> list[Tensor]:
    given = {name: x.detach().clone().requires_grad_() for name, x in t.items()}
    outs = run(given)
    torch.manual_seed(seed)
    found: list[Tensor] = list(
        torch.autograd.grad(outs, list(given.values()), [torch.randn_like(o) for o in outs])
    )
    return found


@pytest.mark.parametrize(("norm", "rope"), list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("layout", ["stacked", "split"])
def test_gradcheck(norm: bool, rope: bool, layout: str) -> None:
    sizes = (4, 3, 2, 2, 3 if rope else 2, 1)
    t = made(sizes, (2, 2), torch.float64)
    names = ["hidden", "w_down", "packed", *["norm_weight"] * norm, *["k_pe"] * rope]
    operands = [t[name].requires_grad_() for name in names]

    def run(*given: Tensor) -> Any:
        named = dict(zip(names, given, strict=True))
        return mla_kv(
            named["hidden"], named["w_down"], named["packed"], kv_heads=2, k_dim=2,
            norm_weight=named.get("norm_weight"), k_pe=named.get("k_pe"),
            layout=layout,  # type: ignore[call-overload]
        )  # fmt: skip

    assert torch.autograd.gradcheck(run, operands)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_are_those_of_the_reference(dtype: torch.dtype) -> None:
    """Within twice the error that the reference's own backward makes, and four roundings."""
    for sizes in SIZES:
        t = made(sizes, dtype=dtype)
        wide = {name: x.double() for name, x in t.items()}
        ours = gradients(lambda g: projected(g, sizes), t)  # noqa: B023
        eager = gradients(lambda g: projected(g, sizes, impl="reference"), t)  # noqa: B023
        # The same cotangents: those of the working dtype.
        truth = gradients_of_float64(wide, sizes, dtype)
        for name, a, b, c in zip(t, ours, eager, truth, strict=True):
            assert a.dtype == dtype and a.shape == t[name].shape
            error, allowed = (a.double() - c).abs().max(), (b.double() - c).abs().max()
            floor = 4 * torch.finfo(dtype).eps * max(1.0, float(c.abs().max()))
            assert error <= 2 * allowed + floor, name


def gradients_of_float64(
    t: dict[str, Tensor], sizes: tuple[int, ...], dtype: torch.dtype
) -> list[Tensor]:
    given = {name: x.detach().clone().requires_grad_() for name, x in t.items()}
    outs = exact(given, sizes, True, True)
    torch.manual_seed(3)
    cotangents = [torch.randn(o.shape, dtype=dtype).double() for o in outs]
    return list(torch.autograd.grad(outs, list(given.values()), cotangents))


@pytest.mark.parametrize("wanted", ["hidden", "w_down", "packed", "norm_weight", "k_pe"])
def test_one_operand_alone_requires_grad(wanted: str) -> None:
    t = made()
    everything = dict(zip(t, gradients(lambda g: projected(g, SIZES[0]), t), strict=True))
    t[wanted].requires_grad_()
    k, v = projected(t, SIZES[0])
    torch.manual_seed(3)
    (found,) = torch.autograd.grad((k, v), t[wanted], [torch.randn_like(k), torch.randn_like(v)])
    assert torch.equal(found, everything[wanted])


def test_one_output_alone_has_a_gradient() -> None:
    t = {name: x.requires_grad_() for name, x in made().items()}
    for used in (0, 1):
        ours = torch.autograd.grad(
            projected(t, SIZES[0])[used].square().sum(), list(t.values()), allow_unused=True
        )
        reference = torch.autograd.grad(
            projected(t, SIZES[0], impl="reference")[used].square().sum(), list(t.values()),
            allow_unused=True,
        )  # fmt: skip
        for a, b in zip(ours, reference, strict=True):
            expected = torch.zeros(()) if b is None else b
            torch.testing.assert_close(a, expected.expand_as(a), rtol=1e-4, atol=1e-4)


def test_expanded_and_strided_gradients() -> None:
    """``y.sum().backward()`` hands over one number with strides of 0 (published failures 23)."""
    t = made()

    def summed(given: dict[str, Tensor], **how: Any) -> list[Tensor]:
        return [sum(x.sum() for x in projected(given, SIZES[0], **how))]  # type: ignore[list-item]

    def turned(given: dict[str, Tensor], **how: Any) -> list[Tensor]:
        k, v = projected(given, SIZES[0], **how)
        return [(k.transpose(0, 2)[1:] ** 2).sum() + v[..., ::2].sum()]

    for function in (summed, turned):
        ours = gradients(function, t)
        expected = gradients(lambda g, f=function: f(g, impl="reference"), t)  # type: ignore[misc]
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_no_gradient_without_a_need() -> None:
    t = {name: x.requires_grad_() for name, x in made().items()}
    with torch.no_grad():
        assert not projected(t, SIZES[0])[0].requires_grad
    with torch.inference_mode():
        assert not projected(t, SIZES[0])[0].requires_grad
    assert not projected(made(), SIZES[0])[0].requires_grad


def test_a_second_derivative_is_refused() -> None:
    t = {name: x.requires_grad_() for name, x in made().items()}
    k, v = projected(t, SIZES[0])
    (first,) = torch.autograd.grad((k * k).sum() + v.sum(), t["hidden"], create_graph=True)
    with pytest.raises(RuntimeError, match=r"cannot be differentiated again.*impl='reference'"):
        torch.autograd.grad(first.sum(), t["w_down"])
    k, v = projected(t, SIZES[0], impl="reference")
    (first,) = torch.autograd.grad((k * k).sum() + v.sum(), t["hidden"], create_graph=True)
    assert torch.autograd.grad(first.sum(), t["w_down"])[0].abs().sum() > 0


@pytest.mark.parametrize("through_backends", [False, True])
def test_the_backward_pass_decides_about_tf32(through_backends: bool) -> None:
    """Whichever way PyTorch was permitted TF32; and the permission is as it was afterwards."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision()
    try:
        if through_backends:
            matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        with backward._precision_of("strict"):
            assert matmul.fp32_precision == "ieee" and not matmul.allow_tf32
        assert matmul.fp32_precision == "tf32"
        torch.set_float32_matmul_precision("highest")
        with backward._precision_of("tf32"):
            assert matmul.allow_tf32
        assert not matmul.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)


# -- torch.library and torch.compile ---------------------------------------------------------------


def positional(t: dict[str, Tensor], sizes: tuple[int, ...], extras: bool) -> tuple[Any, ...]:
    _, rank, heads, k_dim, v_dim, _ = sizes
    both = t["packed"].view(rank, heads, k_dim + v_dim)
    some = (t["hidden"], t["w_down"], both[..., :k_dim], both[..., k_dim:], heads)
    return (*some, t["norm_weight"], 1e-5, t["k_pe"], "strict") if extras else some


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_opcheck(extras: bool, grad: bool) -> None:
    sizes = (6, 5, 2, 3, 4 if extras else 3, 1)
    for op in (contract.mla_kv_op, contract.mla_kv_split_op):
        leaves = {name: x.requires_grad_(grad) for name, x in made(sizes, (2, 3)).items()}
        results = torch.library.opcheck(op, positional(leaves, sizes, extras))
        assert len(results) == 4 and set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("layout", ["stacked", "split"])
def test_opcheck_of_the_forward_twins(layout: str) -> None:
    sizes = (6, 5, 2, 3, 4, 1)
    torch.library.opcheck(contract.OPS[layout][1], positional(made(sizes), sizes, True))


def test_opcheck_of_the_backward_pass() -> None:
    sizes = (6, 5, 2, 3, 4, 1)
    hidden, w_down, k, v, heads, norm, eps, _, _ = positional(made(sizes, (2, 3)), sizes, True)
    for wanted in ([True] * 6, [False, True, False, True, False, True]):
        torch.library.opcheck(backward.op, (
            torch.randn(2, 3, 2, 4), torch.randn(2, 3, 2, 4), hidden, w_down, k, v, heads, norm,
            eps, 1, "strict", wanted,
        ))  # fmt: skip


def test_one_compilation_serves_every_number_of_tokens() -> None:
    """One graph, forward and backward, for any number of tokens."""
    counts = {"graphs": 0}

    def counting(graph: Any, inputs: Any) -> Any:
        counts["graphs"] += 1
        return make_boxed_func(graph.forward)

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def layer(t: dict[str, Tensor]) -> Tensor:
        k, v = projected(t, SIZES[0])
        return (k * 2).sum(dim=-1) + v.sum(dim=-1)

    torch._dynamo.reset()
    compiled = torch.compile(layer, backend=aot_autograd(fw_compiler=counting), fullgraph=True)
    for tokens in (7, 12, 30, 101):
        t = made(leading=(2, tokens))
        t["hidden"].requires_grad_()
        for name in ("hidden", "k_pe"):
            torch._dynamo.mark_dynamic(t[name], 1)
        out, expected = compiled(t), layer(t)
        torch.testing.assert_close(out, expected)
        (ours,) = torch.autograd.grad(out.square().sum(), t["hidden"])
        (theirs,) = torch.autograd.grad(expected.square().sum(), t["hidden"])
        torch.testing.assert_close(ours, theirs)
    assert counts["graphs"] == 2  # forward, backward


def operators_seen(run: Callable[[], Any]) -> list[str]:
    """Names of the operators that a dispatch mode sees while ``run`` runs."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with Watching():
        run()
    return seen


def test_whoever_watches_sees_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager calls without gradients pass by the dispatcher only while nobody looks."""
    t = made()
    with monkeypatch.context() as patch:
        patch.setitem(contract.OPS, "split", (None, None))  # nothing to dispatch to
        projected(t, SIZES[0])
        for name in ("compiler", "mode", "function", "transform", "trace", "profiler", "subclass"):
            with pytest.raises(TypeError, match="'NoneType' object is not callable"):
                watched(name, t)
    assert "kernelproof.mla_kv_split_forward.default" in operators_seen(
        lambda: projected(t, SIZES[0])
    )
    with torch.autograd.profiler.profile() as profile:
        projected(t, SIZES[0])
    assert any("mla_kv_split" in event.name for event in profile.function_events)


class Labelled(Tensor):
    """A subclass: it may do anything in the dispatcher."""


def watched(by: str, t: dict[str, Tensor]) -> None:
    def run() -> Any:
        return projected(t, SIZES[0])

    if by == "compiler":
        torch.compile(run, backend="eager")()
    elif by == "mode":
        operators_seen(run)
    elif by == "function":
        with torch.device("cpu"):  # a torch-function mode
            run()
    elif by == "transform":
        torch.func.functionalize(lambda x: projected({**t, "hidden": x}, SIZES[0]))(t["hidden"])
    elif by == "trace":
        torch.jit.trace(lambda x: projected({**t, "hidden": x}, SIZES[0]), (t["hidden"],))
    elif by == "profiler":
        with torch.autograd.profiler.profile():
            run()
    else:
        projected({**t, "hidden": t["hidden"].as_subclass(Labelled)}, SIZES[0])


def test_autocast_is_the_callers_affair() -> None:
    t = made()
    t["hidden"] = t["hidden"].bfloat16()
    with pytest.raises(TypeError, match=r"w_down is torch\.float32 and hidden torch\.bfloat16"):
        projected(t, SIZES[0])


# -- explain and errors ----------------------------------------------------------------------------


def test_explain() -> None:
    t = made(leading=(2, 200))
    arguments: dict[str, Any] = dict(kv_heads=3, k_dim=11, layout="split")
    text = explain(t["hidden"], t["w_down"], t["packed"], **arguments)
    assert text == ops.explain(mla_kv, t["hidden"], t["w_down"], t["packed"], **arguments)
    assert text == ops.explain("mla_kv", t["hidden"], t["w_down"], t["packed"], **arguments)
    assert "400 tokens, M = 61, R = 19, H = 3, 11 + 13 columns a head, float32" in text
    assert f"kernel.cpp for {cpu.instruction_sets()[-1]}" in text
    assert f"of {torch.get_num_threads()} threads" in text
    assert "tf32" not in text
    assert "permits less" in explain(
        t["hidden"], t["w_down"], t["packed"], accuracy="tf32", **arguments
    )
    reference = explain(t["hidden"], t["w_down"], t["packed"], impl="reference", **arguments)
    assert "impl='reference'" in reference
    with pytest.raises(ValueError, match="no kernel for hidden on cpu with impl='cuda'"):
        explain(t["hidden"], t["w_down"], t["packed"], impl="cuda", **arguments)


def test_explain_says_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large bfloat16 problems: the library where the CPU multiplies bfloat16, else the kernel."""
    x, down, up = (torch.zeros(n, dtype=torch.bfloat16) for n in (1, 1, 1))
    x, down, up = x.expand(64, 1024).clone(), down.expand(1024, 512).clone(), up.expand(512, 512)
    for has, words in ((True, "PyTorch's matrix products"), (False, "kernel.cpp")):
        monkeypatch.setattr(cpu, "_multiplies_bfloat16", lambda has=has: has)
        called = []
        monkeypatch.setattr(
            cpu,
            "project_library",
            lambda *a, **k: called.append(1) or torch.zeros(1),  # noqa: B023
        )
        assert words in explain(x, down, up, up, kv_heads=2)
        cpu.project_cpu(x, down, up, up, kv_heads=2)
        assert bool(called) == has


def test_operators_without_an_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AttributeError, match="no operator 'nothing'"):
        ops.explain("nothing")
    monkeypatch.delattr(importlib.import_module("kernelproof.ops.int8_attention"), "explain")
    with pytest.raises(UnsupportedError, match="int8_attention does not explain"):
        ops.explain("int8_attention")


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(w_up_v=None), ValueError, "give w_up_v; or, where w_up_k is packed"),
        (dict(k_dim=2), ValueError, "not both"),
        (dict(w_up_v=None, k_dim=9), ValueError, "k_dim is 9; each head .* has 4 columns"),
        (dict(w_up_v=None, k_dim=2, kv_heads=3), ValueError, "the packed weight has shape"),
        (dict(weights="linear"), ValueError, "accepted are 'in_out', 'out_in'"),
        (dict(layout="joined"), ValueError, "layout is 'joined'"),
        (dict(accuracy="fp32"), ValueError, "accuracy is 'fp32'; accepted are 'strict', 'tf32'"),
        (dict(norm_weight=torch.zeros(5)), ValueError, r"norm_weight has shape \(5,\)"),
        (dict(norm_weight=torch.zeros(6).double()), TypeError, "norm_weight is torch.float64"),
        (dict(k_pe=torch.zeros(2, 3, 4)), ValueError, r"add the axis of heads with .unsqueeze"),
        (dict(k_pe=torch.zeros(2, 3, 2, 4)), ValueError, "k_pe has shape"),
        (dict(k_pe=torch.zeros(2, 3, 1, 4)), ValueError, "8 columns .4 of w_up_k, 4 of k_pe"),
        (dict(k_pe=torch.zeros(2, 3, 1, 4).half()), TypeError, "k_pe is torch.float16"),
        (dict(w_up_k=torch.zeros(6, 3, 4)), ValueError, "the second size must be the number"),
        (dict(w_up_k=torch.zeros(6)), ValueError, "must be a matrix"),
    ],
)  # fmt: skip
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = dict(
        hidden=torch.zeros(2, 3, 4), w_down=torch.zeros(4, 6), w_up_k=torch.zeros(6, 8),
        w_up_v=torch.zeros(6, 8), kv_heads=2,
    )  # fmt: skip
    with pytest.raises(error, match=words):
        mla_kv(**{**arguments, **change})
