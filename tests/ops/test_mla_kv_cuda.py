"""The CUDA kernels of mla_kv: choice, sources, values under the emulator and on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.errors import UnsupportedError
from kernelproof.ops.mla_kv import cuda, cuda_plan, mla_kv, problem
from kernelproof.ops.mla_kv.cuda_steps import H200, Device, Library

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = [F32, F64, F16, BF16]
FORMS = ["in_out", "out_in", "packed", "packed_in"]
# Largest error over the largest value: float64 and float32 arithmetic (a matrix library that adds
# 1,536 terms in turn has 1.3e-6), and roundings to 16 bits of the latents and of the result.
BOUND = {F64: 1e-13, F32: 2e-6, F16: 2e-3, BF16: 1.2e-2}

# Edges of tiles, of masks and of splits: tokens, M, R, H, Dk, Dv.
SIZES = [
    (1, 1, 1, 1, 1, 1),
    (5, 8, 8, 1, 8, 8),
    (33, 61, 19, 3, 11, 11),
    (129, 250, 44, 3, 20, 28),
    (300, 513, 77, 5, 33, 33),
    (16, 1024, 256, 16, 64, 64),
    (17, 700, 130, 3, 171, 171),
    (385, 256, 48, 4, 32, 32),
    (1000, 256, 48, 4, 32, 32),
    (70, 300, 1536, 2, 72, 72),
    (3, 5001, 100, 2, 600, 600),
    (2000, 40, 72, 1, 136, 136),
]


def call(
    tokens: int,
    model: int,
    rank: int,
    heads: int,
    k_dim: int,
    v_dim: int,
    dtype: torch.dtype = F32,
    form: str = "in_out",
    rope: int = 0,
    norm: bool = False,
    device: str = "cpu",
    offset: int = 0,
    **options: Any,
) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Operands and options of `project_cuda`. ``form``: how the weights lie, "packed" as DeepSeek's
    kv_b_proj does; ``offset``: elements by which hidden starts off a boundary of 16 bytes."""

    def made(*sizes: int, scale: float = 1.0) -> torch.Tensor:
        if device == "meta":
            return torch.empty(sizes, dtype=dtype, device="meta")
        return (scale * torch.randn(*sizes)).to(dtype).to(device)

    torch.manual_seed(0)
    hidden = made(tokens, model + offset)[:, offset:]
    a, b = model**-0.5, rank**-0.5
    if form == "in_out":
        down, up_k = made(model, rank, scale=a), made(rank, heads * k_dim, scale=b)
        up_v = made(rank, heads * v_dim, scale=b)
    elif form == "packed_in":
        both = made(rank, heads, k_dim + v_dim, scale=b)
        down, up_k, up_v = made(model, rank, scale=a), both[..., :k_dim], both[..., k_dim:]
    elif form == "packed":
        both = made(heads, k_dim + v_dim, rank, scale=b).permute(2, 0, 1)
        down, up_k, up_v = made(rank, model, scale=a).t(), both[..., :k_dim], both[..., k_dim:]
    else:
        down, up_k = made(rank, model, scale=a).t(), made(heads * k_dim, rank, scale=b).t()
        up_v = made(heads * v_dim, rank, scale=b).t()
    options["kv_heads"] = heads
    options["norm_weight"] = made(rank) if norm else None
    options["k_pe"] = made(tokens, 1, rope) if rope else None
    options["layout"] = "stacked" if k_dim + rope == v_dim else "split"
    return [hidden, down, up_k, up_v], options


def chain(
    operands: list[torch.Tensor], options: dict[str, Any], dtype: torch.dtype = F64
) -> tuple[torch.Tensor, ...]:
    """Keys and values by the formula, computed in ``dtype``, split."""
    hidden, down, up_k, up_v = (t.to(dtype) for t in operands)
    latent = hidden @ down
    if options["norm_weight"] is not None:
        wide = latent.to(torch.promote_types(dtype, F32))
        wide = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        latent = (wide * options["norm_weight"].to(wide.dtype)).to(dtype)
    rank, heads = down.shape[1], options["kv_heads"]
    k, v = (
        (latent @ w.reshape(rank, -1)).view(*hidden.shape[:-1], heads, -1) for w in (up_k, up_v)
    )
    if options["k_pe"] is not None:
        k = torch.cat((k, options["k_pe"].to(dtype).expand(*k.shape[:-1], -1)), -1)
    return k, v


def parted(out: Any) -> tuple[torch.Tensor, ...]:
    return out if isinstance(out, tuple) else tuple(out.unbind(-3))


def check(out: Any, operands: list[torch.Tensor], options: dict[str, Any]) -> None:
    """Every element is there, and near enough to float64."""
    for got, want in zip(parted(out), chain(operands, options), strict=True):
        assert got.shape == want.shape and got.dtype == operands[0].dtype
        error = (got.double() - want).abs().max() / want.abs().max()
        assert error <= BOUND[got.dtype]


def plan_for(*sizes: Any, design: str | None = None, **options: Any) -> cuda_plan.Plan:
    operands, options = call(*sizes, device="meta", **options)
    return cuda_plan.plan(cuda.operands_of(*operands, **options), H200, design)


@pytest.fixture(autouse=True)
def poison() -> Any:
    """New tensors start as NaN: an element that a kernel does not write cannot pass."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# -- choice ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "options", "design"),
    [
        ((384, 256, 48, 4, 32, 32), {}, "registers"),
        ((384, 256, 48, 4, 32, 32), dict(norm=True), "small"),
        ((384, 256, 48, 4, 32, 32), dict(dtype=F16), "narrow"),
        ((384, 256, 48, 4, 32, 32), dict(dtype=F16, form="packed", norm=True), "small"),
        ((1, 7168, 512, 128, 128, 128), dict(dtype=BF16), "decode"),
        ((16, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed_in", rope=64), "decode"),
        ((8, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed"), "decode"),
        ((9, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed"), "pair"),
        ((16, 2048, 512, 16, 128, 128), dict(dtype=BF16), "pair"),
        ((16, 2048, 512, 16, 128, 128), dict(dtype=BF16, form="packed", norm=True), "pair"),
        ((16, 2050, 512, 16, 128, 128), dict(dtype=BF16), "split"),
        ((129, 2048, 512, 16, 128, 128), dict(dtype=BF16), "library"),
        ((512, 4096, 256, 32, 64, 64), dict(dtype=BF16), "pair"),
        ((8, 2048, 512, 16, 128, 128), dict(dtype=BF16), "decode"),
        ((17, 7168, 512, 128, 128, 128), dict(dtype=BF16), "pair"),
        ((129, 7168, 512, 128, 128, 128), dict(dtype=BF16), "library"),
        ((512, 7168, 512, 128, 128, 128), dict(dtype=BF16), "wide"),
        ((8, 2048, 512, 16, 128, 128), {}, "few"),
        ((8, 2048, 512, 16, 128, 128), dict(form="packed"), "split"),
        ((16, 2048, 512, 16, 128, 128), {}, "split"),
        ((33, 2048, 512, 16, 128, 128), {}, "library"),
        ((333, 1000, 100, 5, 60, 60), {}, "cluster"),
        ((2048, 2048, 512, 16, 128, 128), {}, "parts"),
        ((2048, 1536, 8, 16, 64, 64), dict(dtype=F16), "thin"),
        ((16, 333, 77, 3, 21, 21), dict(dtype=F16), "small"),
        ((8, 333, 77, 3, 21, 21), dict(dtype=F16), "small"),
        ((256, 2048, 512, 16, 128, 128), dict(dtype=BF16), "library"),
        ((256, 2048, 512, 16, 128, 128), dict(dtype=BF16, form="packed", rope=64), "mma"),
        ((16, 7168, 512, 128, 128, 128), dict(dtype=F32), "library"),
        ((16, 7168, 512, 128, 128, 128), dict(dtype=F32, form="packed"), "mma"),
        ((65536, 1024, 128, 8, 64, 64), dict(dtype=BF16), "narrow"),
        ((8192, 1024, 128, 8, 64, 64), dict(dtype=BF16), "library"),
        ((4096, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed"), "wgmma"),
        ((4096, 7168, 512, 128, 128, 128), dict(dtype=BF16, offset=1), "library"),
        ((4096, 7168, 511, 128, 128, 128), dict(dtype=BF16), "library"),
        ((4096, 7168, 511, 128, 128, 128), dict(dtype=BF16, form="packed"), "mma"),
        ((4096, 2048, 512, 16, 128, 128), dict(dtype=F64), "product"),
    ],
)
def test_designs_chosen(sizes: Any, options: dict[str, Any], design: str) -> None:
    assert plan_for(*sizes, **options).design == design


def test_strict_float32_is_not_left_to_a_global_setting() -> None:
    operands, options = call(16, 7168, 512, 128, 128, 128, device="meta")
    known = cuda.operands_of(*operands, **options)
    assert cuda_plan.plan(known, Device(cublaslt=False)).design == "mma"
    with pytest.raises(ValueError, match="'library' does not fit"):
        cuda_plan.plan(known, Device(cublaslt=False), "library")


def test_older_devices_get_no_design_of_hopper() -> None:
    operands, options = call(4096, 7168, 512, 128, 128, 128, BF16, device="meta")
    known = cuda.operands_of(*operands, **options)
    assert cuda_plan.plan(known, Device(108, (8, 0))).design == "library"


def test_a_design_that_does_not_fit_is_refused() -> None:
    for design in ("registers", "decode", "wgmma"):
        with pytest.raises(ValueError, match=f"design '{design}' does not fit"):
            plan_for(33, 61, 19, 3, 11, 11, design=design)


def test_the_explanation_names_every_step() -> None:
    operands, options = call(
        8192, 2048, 512, 16, 128, 128, F16, "packed", rope=64, norm=True, device="meta"
    )
    words = cuda.explain_cuda(*operands, **options).splitlines()
    assert words[0].startswith("wgmma: ") and len(words) == 3
    assert [w.split("<")[0].strip() for w in words[1:]] == ["mla_kv_wgmma"] * 2
    empty = [operands[0][:0], *operands[1:]]
    options["k_pe"] = options["k_pe"][:0]
    assert "nothing to do" in cuda.explain_cuda(*empty, **options)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(layout="both"), "accepted are stacked, split"),
        (dict(accuracy="fp8"), "accepted are strict, tf32"),
        (dict(k_pe=torch.empty(4, 2, 8, device="meta")), r"it must be \(5, 1\)"),
        (dict(layout="stacked", k_pe=torch.empty(5, 1, 3, device="meta")), "layout='split'"),
    ],
)
def test_options_that_do_not_fit(change: dict[str, Any], words: str) -> None:
    operands, options = call(5, 8, 8, 1, 8, 8, device="meta")
    with pytest.raises(ValueError, match=words):
        cuda.operands_of(*operands, **{**options, **change})


# -- sources ---------------------------------------------------------------------------------------


def test_no_source_has_what_older_compilers_refuse() -> None:
    """NVRTC 13.0 takes a lambda with a parameter of type auto for a function of the host."""
    for source in Path(cuda.__file__).parents[1].rglob("*.cu*"):
        assert not re.search(r"\]\s*\([^)]*\bauto\b", source.read_text()), source.name


COMPILED = [
    *((sizes, {}) for sizes in ((33, 61, 19, 3, 11, 11), (385, 256, 48, 4, 32, 32))),
    *(((300, 520, 96, 5, 40, 40), dict(dtype=d, design="mma")) for d in (F32, F16, BF16)),
    ((300, 520, 96, 5, 40, 40), dict(dtype=BF16, form="packed", design="mma")),
    ((300, 520, 96, 5, 40, 40), dict(accuracy="tf32", design="mma")),
    *(((300, 520, 96, 5, 40, 40), dict(dtype=d, design="block")) for d in (F32, BF16)),
    *(((300, 520, 96, 5, 40, 40), dict(dtype=d, design="product")) for d in (F64, F16)),
    ((1, 7168, 512, 128, 128, 128), dict(dtype=BF16)),
    ((16, 2048, 512, 16, 128, 128), dict(dtype=F16, rope=64, norm=True)),
    ((8, 2048, 512, 16, 128, 128), dict(dtype=F16, form="packed", rope=64)),
    ((4096, 7168, 512, 128, 128, 128), dict(dtype=BF16)),
    ((4096, 7168, 512, 128, 128, 128), dict(dtype=F16, form="packed")),
    ((512, 7168, 512, 128, 128, 128), dict(dtype=BF16)),
    ((64, 7168, 512, 128, 128, 128), dict(dtype=F16, form="packed", design="wide")),
]


@pytest.mark.parametrize(("sizes", "options"), COMPILED, ids=str)
def test_sources_compile(sizes: Any, options: dict[str, Any]) -> None:
    for step in plan_for(*sizes, **options).launches:
        if isinstance(step, Library):
            continue
        archs = ["sm_90a"]
        if step.source in ("kernel.cu", "kernel_mma.cu") and BF16 in options.values():
            archs.append("sm_80")
        for arch in archs:
            try:
                assert cuda.kernel(step.name, step.source).compile(arch)
            except UnsupportedError as error:
                pytest.skip(str(error))


def test_shared_memory_is_within_the_limit() -> None:
    for tokens in (1, 2, 8, 9, 16, 4096):
        for step in plan_for(tokens, 7168, 512, 128, 128, 128, dtype=BF16).launches:
            assert isinstance(step, Library) or step.shared <= 227 * 1024


# -- values under the emulator ---------------------------------------------------------------------


def emulated(operands: list[torch.Tensor], **options: Any) -> tuple[Any, list[str]]:
    """The result and the kernels that ran; any finding is a failure."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")
    recorder = Recorder()
    with standing_in(recorder):
        out = cuda.project_cuda(*operands, **options)
    results = recorder.taken()
    assert [str(f) for r in results for f in r.findings] == []
    return out, [r.kernel.split("<")[0] for r in results]


@pytest.mark.parametrize(
    ("sizes", "options", "design"),
    [
        ((20, 96, 40, 2, 16, 16), dict(dtype=BF16), "mma"),
        ((20, 70, 41, 2, 13, 13), dict(dtype=F16), "mma"),
        ((5, 700, 48, 2, 8, 16), dict(dtype=BF16, norm=True, rope=8), "mma"),
        ((37, 70, 48, 2, 8, 24), dict(dtype=BF16, form="packed", norm=True, rope=8), "mma"),
        ((37, 70, 48, 2, 8, 24), dict(dtype=F16, form="packed_in", rope=5, offset=3), "mma"),
        ((20, 96, 40, 2, 16, 16), {}, "mma"),
        ((5, 70, 48, 2, 8, 24), dict(form="packed", norm=True, rope=8), "mma"),
        ((5, 70, 48, 3, 8, 24), dict(form="out_in"), "mma"),
        ((5, 70, 48, 3, 7, 20), dict(form="packed", norm=True, rope=6), "fused"),
        ((5, 70, 48, 3, 8, 16), dict(dtype=F16, form="packed_in", rope=8), "fused"),
        ((5, 70, 48, 3, 7, 20), dict(dtype=F64, form="packed_in", norm=True, rope=6), "product"),
        ((5, 700, 48, 3, 8, 8), dict(dtype=BF16, norm=True), "product"),
        ((5, 128, 48, 3, 8, 8), {}, "registers"),
        ((37, 70, 72, 2, 8, 16), dict(dtype=BF16, norm=True, rope=8), "block"),
        ((9, 70, 20, 2, 8, 24), dict(dtype=F16, form="packed", rope=8, offset=1), "block"),
        ((9, 70, 70, 2, 5, 8), dict(form="out_in", norm=True, rope=3), "block"),
        ((40, 36, 8, 2, 40, 40), {}, "block"),
        ((5, 60, 19, 3, 11, 14), dict(form="packed", norm=True, rope=3), "small"),
        ((20, 96, 40, 2, 16, 24), dict(dtype=F16, form="out_in", norm=True), "library"),
        ((9, 96, 40, 2, 16, 16), dict(dtype=BF16), "library"),
    ],
    ids=str,
)
def test_emulated_values(sizes: Any, options: dict[str, Any], design: str) -> None:
    operands, options = call(*sizes, **options)
    out, kernels = emulated(operands, design=design, **options)
    expected = ["mla_kv_latent"] * bool(options["norm_weight"] is not None)
    assert kernels == expected if design == "library" else kernels[-1] == f"mla_kv_{design}"
    check(out, operands, options)


def test_tf32_is_coarser_and_only_where_asked_for() -> None:
    operands, options = call(17, 200, 40, 1, 16, 16)
    out, _ = emulated(operands, design="mma", **{**options, "accuracy": "tf32"})
    error = (parted(out)[0].double() - chain(operands, options)[0]).abs().max()
    assert 1e-5 < error < 1e-2


@pytest.mark.parametrize("design", ["mma", "block"])
def test_infinities_stay_in_their_token(design: str) -> None:
    """Also where a factor has no low part, and an infinity times zero would be NaN."""
    operands, options = call(9, 24, 8, 1, 8, 8)
    operands[0][2, 3] = float("inf")
    operands[0][4, 5] = float("nan")
    out, _ = emulated(operands, design=design, **options)
    want = torch.stack(chain(operands, options, F32), 1)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_strides_that_need_no_copy() -> None:
    """Two leading axes that do not merge, and every other column of hidden."""
    operands, options = call(24, 48, 24, 2, 8, 8)
    wide = torch.full((4, 9, 96), float("nan"))
    wide[:, 2:8, ::2] = operands[0].view(4, 6, 48)
    out, _ = emulated([wide[:, 2:8, ::2], *operands[1:]], design="mma", **options)
    check(out.flatten(0, 1), operands, options)
    operands, options = call(24, 48, 24, 2, 8, 8, BF16)
    wide = torch.full((4, 9, 48), float("nan"), dtype=BF16)
    wide[:, 2:8] = operands[0].view(4, 6, 48)
    out, _ = emulated([wide[:, 2:8], *operands[1:]], design="library", **options)
    check(out.flatten(0, 1), operands, options)


def test_nothing_is_launched_for_no_tokens() -> None:
    operands, options = call(0, 48, 24, 2, 8, 8)
    out, kernels = emulated(operands, **options)
    assert out.shape == (0, 2, 2, 8) and kernels == []


# -- on a GPU --------------------------------------------------------------------------------------


def on_gpu(operands: list[torch.Tensor], design: str | None, **options: Any) -> Any:
    """Twice, bit for bit the same."""
    first = cuda.project_cuda(*operands, design=design, **options)
    again = cuda.project_cuda(*operands, design=design, **options)
    for a, b in zip(parted(first), parted(again), strict=True):
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
    return first


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("design", [None, "small", "fused", "block", "mma", "product"])
def test_gpu_values(design: str | None, dtype: torch.dtype) -> None:
    for number, sizes in enumerate(SIZES):
        rope = (0, 0, 8, 5)[number % 4]
        operands, options = call(
            *sizes, dtype=dtype, form=FORMS[number % 4], rope=rope, norm=number % 3 == 1,
            device="cuda", offset=number % 2,
        )  # fmt: skip
        try:
            check(on_gpu(operands, design, **options), operands, options)
        except ValueError as error:
            assert design in ("small", "fused", "block", "mma") and "does not fit" in str(error)


HOPPER = [
    ("decode", (1, 7168, 512, 128, 128, 128), dict(dtype=BF16)),
    ("decode", (16, 7168, 512, 128, 128, 128), dict(dtype=F16, form="packed_in", norm=True)),
    ("decode", (9, 2048, 512, 16, 128, 192), dict(dtype=BF16, rope=64, norm=True)),
    ("decode", (7, 1032, 256, 9, 40, 40), dict(dtype=F16, rope=8)),
    ("decode", (1, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="out_in")),
    ("decode", (8, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed", rope=64, norm=True)),
    ("decode", (5, 1032, 256, 9, 64, 64), dict(dtype=F16, form="out_in")),
    ("decode", (1, 1032, 256, 9, 40, 40), dict(dtype=F16, norm=True)),
    ("few", (16, 2048, 512, 16, 128, 128), {}),
    ("few", (3, 1000, 192, 9, 40, 40), dict(form="packed_in", rope=8, norm=True)),
    ("thin", (2048, 1536, 8, 16, 64, 64), dict(dtype=F16)),
    ("thin", (333, 1000, 40, 5, 24, 40), dict(dtype=BF16, rope=16, norm=True)),
    ("cluster", (1000, 777, 200, 7, 40, 40), dict(dtype=BF16)),
    ("cluster", (333, 1000, 100, 5, 60, 60), {}),
    ("cluster", (16, 333, 77, 3, 21, 21), dict(dtype=F16)),
    ("cluster", (333, 1000, 100, 5, 24, 40), dict(form="packed", rope=16, norm=True)),
    ("cluster", (1000, 1024, 256, 8, 64, 64), dict(dtype=F16, form="out_in", norm=True)),
    ("pair", (64, 2048, 512, 16, 128, 128), dict(dtype=BF16)),
    ("pair", (32, 7168, 512, 128, 128, 128), dict(dtype=F16)),
    ("pair", (512, 4096, 256, 32, 64, 64), dict(dtype=BF16, form="out_in")),
    ("pair", (255, 7168, 512, 128, 128, 128), dict(dtype=BF16, form="packed", rope=64, norm=True)),
    ("pair", (65, 1032, 264, 9, 40, 40), dict(dtype=F16)),
    *(("wide", (n, 7168, 512, 128, 128, 128), dict(dtype=BF16)) for n in (65, 129, 200, 256, 512)),
    ("wide", (256, 7168, 512, 128, 128, 128), dict(dtype=F16, form="packed")),
    ("wide", (256, 2048, 512, 16, 128, 128), dict(dtype=BF16)),
    ("wide", (64, 2048, 512, 16, 128, 192), dict(dtype=F16, form="out_in")),
    ("wide", (300, 2560, 1536, 20, 64, 64), dict(dtype=F16)),
    ("wide", (77, 520, 200, 9, 40, 40), dict(dtype=BF16)),
    ("wide", (333, 1032, 264, 9, 64, 64), dict(dtype=F16, form="packed_in")),
    ("wide", (5, 72, 8, 1, 64, 128), dict(dtype=BF16)),
    ("split", (16, 2048, 512, 16, 128, 128), {}),
    ("split", (1, 1024, 256, 8, 64, 64), {}),
    ("split", (57, 777, 200, 7, 40, 40), dict(dtype=BF16)),
    ("split", (16, 333, 77, 3, 21, 21), dict(dtype=F16, form="out_in")),
    ("split", (20, 1000, 192, 9, 40, 40), dict(form="packed_in", rope=8, norm=True)),
    ("split", (16, 7168, 512, 16, 128, 128), dict(form="packed", rope=64, norm=True)),
    ("wgmma", (256, 1024, 512, 16, 128, 128), dict(dtype=F16, form="out_in")),
    ("wgmma", (8192, 2048, 512, 16, 128, 128), dict(dtype=F16, form="packed", norm=True, rope=64)),
    ("wgmma", (1000, 520, 136, 9, 64, 64), dict(dtype=BF16, form="packed_in", rope=16, norm=True)),
    ("wgmma", (77, 520, 200, 9, 40, 40), dict(dtype=F16)),
    ("wgmma", (2048, 2048, 512, 16, 128, 128), dict(dtype=BF16, form="packed", rope=64, norm=True)),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("design", "sizes", "options"), HOPPER, ids=str)
def test_gpu_designs_of_hopper(design: str, sizes: Any, options: dict[str, Any]) -> None:
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("this design is for sm_90")
    operands, options = call(*sizes, device="cuda", **options)
    check(on_gpu(operands, design, **options), operands, options)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(384, 256, 48, 4, 32, 32), (300, 600, 512, 4, 64, 64)])
def test_gpu_strict_is_no_worse_than_eager(sizes: Any) -> None:
    """The root mean square of the errors is twice eager's at most: a library splits its sums."""
    operands, options = call(*sizes, device="cuda")
    want = chain(operands, options)
    eager = chain(operands, options, F32)
    for design in (None, "mma"):
        out = parted(cuda.project_cuda(*operands, design=design, **options))
        for got, near, exact in zip(out, eager, want, strict=True):
            error, limit = ((x - exact).square().mean().sqrt() for x in (got, near))
            assert error <= 2 * limit


@pytest.mark.gpu
def test_gpu_repeats_in_a_stream_and_a_graph() -> None:
    for sizes, dtype in (
        ((384, 256, 48, 4, 32, 32), F32),
        ((16, 1024, 256, 16, 64, 64), F32),
        ((16, 333, 77, 3, 21, 21), F16),
        ((4, 2048, 512, 16, 128, 128), BF16),
        ((512, 2048, 512, 16, 128, 128), BF16),
    ):
        operands, options = call(*sizes, dtype=dtype, device="cuda")
        expected = cuda.project_cuda(*operands, **options)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            assert torch.equal(cuda.project_cuda(*operands, **options), expected)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scaled = operands[0] * 1  # a kernel just before: programmatic launch must wait for it
            out = cuda.project_cuda(scaled, *operands[1:], **options)
        for _ in range(3):
            out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, expected)


@pytest.mark.gpu
def test_gpu_decode_on_two_streams_at_once() -> None:
    operands, options = call(1, 2048, 512, 16, 128, 128, BF16, device="cuda")
    expected = cuda.project_cuda(*operands, **options)
    streams = [torch.cuda.Stream() for _ in range(4)]
    outs = []
    for _ in range(25):
        for stream in streams:
            with torch.cuda.stream(stream):
                outs.append(cuda.project_cuda(*operands, **options))
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


@pytest.mark.gpu
@pytest.mark.parametrize("design", ["small", "fused", "block", "mma", "product"])
def test_gpu_infinities_stay_in_their_token(design: str) -> None:
    operands, options = call(21, 61, 19, 3, 11, 11, device="cuda")
    operands[0][9, 3] = float("inf")
    out = cuda.project_cuda(*operands, design=design, **options)
    want = torch.stack(chain(operands, options, F32), 1)
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", problem.CASES.values(), ids=str)
def test_gpu_operator_takes_the_cases(sizes: dict[str, Any]) -> None:
    torch.manual_seed(0)
    operands = [t.cuda() for t in problem.get_inputs(**sizes)]
    heads = int(sizes.get("kv_heads", 4))
    out = mla_kv(*operands, kv_heads=heads)
    want = problem.Model(heads)(*operands)
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-3, equal_nan=True)
