"""int8_attention beyond its plain form: against a float64 computation, on each kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.ops.int8_attention import (
    Int8Attention,
    contract,
    cpu,
    cuda,
    cuda_general,
    cuda_wgmma,
    explain,
    int8_attention,
    problem,
    problem_forms,
    quantize_int8,
    scaled_dot_product_int8,
)
from kernelproof.ops.int8_attention.contract import PLAIN, Form
from kernelproof.ops.int8_attention.quantize import attention_backward
from kernelproof.ops.int8_attention.reference import attend
from kernelproof.pipeline import Options, judge

# Relative rms error against float64, by accuracy; and what rounding the output adds.
BOUNDS = {"strict": 1e-6, "high": 3e-4}
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


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


def relative(out: Tensor, truth: Tensor) -> float:
    """Root mean square of the error over that of the truth; 0 where there is nothing."""
    if truth.numel() == 0:
        return 0.0
    error, size = (out.double() - truth).pow(2).mean(), truth.pow(2).mean()
    return float((error / size).sqrt()) if size > 0 else float(error)


def assert_right(
    got: tuple[Tensor, Tensor | None], tensors: list[Tensor], causal: bool, form: Form
) -> None:
    out, lse = got
    wide = [*tensors[:3], *(t.double() for t in tensors[3:6])]
    truth, sums = attend(*wide, causal, 1 / math.sqrt(max(tensors[0].shape[3], 1)), form)
    assert out.dtype == form.out_dtype and out.shape == truth.shape and out.is_contiguous()
    bound = BOUNDS["strict" if form.strict else "high"] + ROUNDING[form.out_dtype]
    assert relative(out, truth) <= bound
    if lse is None:
        return
    assert lse.dtype == torch.float32 and lse.shape == sums.shape
    assert torch.equal(lse.isneginf(), sums.isneginf())
    seen = sums.isfinite()
    error = (lse.double() - sums)[seen].abs()
    assert not seen.any() or error.max() <= 1e-6 * (1 + sums[seen].abs().max())


def made(name: str, seed: int = 0) -> tuple[list[Tensor], bool, Form, dict[str, Any]]:
    """Tensors, causal and form of one of the problem's cases, and the public call's keywords."""
    sizes = problem_forms.CASES[name]
    torch.manual_seed(seed)
    tensors = problem_forms.get_inputs(**sizes)
    model = cpu.ModelNew(**_constructor(sizes))
    places = dict(zip(model.places, tensors[6:], strict=True))
    form = model.form._replace(**places)
    keywords = {
        "accuracy": "strict" if form.strict else "high", "out_dtype": form.out_dtype,
        "block": form.block or None, "return_lse": form.with_lse, "causal": model.causal, **places,
    }  # fmt: skip
    return tensors[:6], model.causal, form, keywords


def _constructor(sizes: dict[str, Any]) -> dict[str, Any]:
    names = ("causal", "kind", "accuracy", "out_dtype", "block", "lse")
    return {name: sizes[name] for name in names if name in sizes}


def pair(result: Any) -> tuple[Tensor, Tensor | None]:
    return result if isinstance(result, tuple) else (result, None)


# ---- CPU ----


@pytest.mark.parametrize("target", [t for t in cpu.TARGETS if t != "x86-64-v4"])
@pytest.mark.parametrize("name", problem_forms.CASES)
def test_cpu(name: str, target: str) -> None:
    tensors, causal, form, keywords = made(name)
    before = [t.clone() for t in tensors]
    with cpu.compiled_for(target):
        assert_right(pair(int8_attention(*tensors, **keywords)), tensors, causal, form)
    assert all(torch.equal(now, then) for now, then in zip(tensors, before, strict=True))


def test_instruction_sets() -> None:
    names = []
    for target in ("x86-64", "x86-64-v3"):
        with cpu.compiled_for(target):
            names.append(cpu.instructions())
    assert names == ["plain C++ (fp32 products)", "AVX2 (int16 products)"]
    with pytest.raises(ValueError, match="target is 'avx9'"), cpu.compiled_for("avx9"):
        pass


@pytest.mark.parametrize("name", ["paged_blocks", "packed_per_head", "default"])
def test_reference_agrees(name: str) -> None:
    tensors, _, _, keywords = made(name)
    ours = pair(int8_attention(*tensors, **keywords))
    theirs = pair(int8_attention(*tensors, **keywords, impl="reference"))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_reference_is_the_founding_definition() -> None:
    """`attend`, which everything here is compared with, against the loop of problem.py."""
    torch.manual_seed(0)
    for sizes in ({}, {"seq": 9, "kv_seq": 4}, {"kv_heads": 2, "seq": 7, "causal": False}):
        inputs = problem.get_inputs(**sizes)
        inputs[3:] = [t.double() for t in inputs[3:]]
        causal = sizes.get("causal", True)
        loop = problem.reference(*inputs, causal)
        ours = attend(*inputs, causal, 1 / math.sqrt(inputs[0].shape[3]))[0]
        torch.testing.assert_close(ours, loop, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_cpu_splits_do_not_depend_on_threads(threads: int) -> None:
    torch.manual_seed(0)
    tensors = problem_forms.get_inputs(seq=2, kv_seq=4200, lens=(4200, 9, 2049), kind="lens")
    form = Form(kv_lens=tensors[6], with_lse=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        runs = [cpu.launch_form(*tensors[:6], True, 32**-0.5, form) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    assert_right(runs[0], tensors[:6], True, form)
    assert torch.equal(runs[0][0], runs[1][0])
    alone = [t[:1] for t in tensors[:6]]
    once = cpu.launch_form(*alone, True, 32**-0.5, Form(kv_lens=tensors[6][:1], with_lse=True))
    assert torch.equal(once[0], runs[0][0][:1])  # and not on the batch either


def test_prefill_decode_and_packed_agree() -> None:
    torch.manual_seed(1)
    tensors = problem_forms.get_inputs(batch=1, seq=12, kv_seq=12)
    q, k, v, q_scale, k_scale, v_scale = tensors
    whole = int8_attention(*tensors)
    for t in range(12):
        one = slice(t, t + 1)
        step = int8_attention(
            q[:, one], k, v, q_scale[:, one], k_scale, v_scale,
            kv_lens=torch.tensor([t + 1], dtype=torch.int32),
        )  # fmt: skip
        torch.testing.assert_close(step, whole[:, one], rtol=2e-6, atol=2e-6)
    ends = torch.tensor([0, 12], dtype=torch.int32)
    packed = int8_attention(*tensors, cu_seqlens_q=ends, cu_seqlens_k=ends)
    assert torch.equal(packed, whole)


# ---- what is not seen ----


def hidden(kind: str, half: bool) -> tuple[list[Tensor], dict[str, Any], Callable[[], None]]:
    """A call, and a function that writes NaN, infinities and 99 wherever no query looks."""
    torch.manual_seed(2)
    sizes = {"lens": (9, 3)} if kind in ("lens", "paged") else {"batch": 2, "kv_seq": 9}
    tensors = problem_forms.get_inputs(kind=kind, seq=2, page=4, half=half, **sizes)
    _, k, v, _, k_scale, v_scale = tensors[:6]
    keywords: dict[str, Any] = {}
    if kind != "dense":
        keywords["kv_lens"] = tensors[6]
    if kind == "paged":
        keywords["block_table"] = tensors[7]

    def spoil(where: Any) -> None:
        k[where], v[where] = 99, (math.nan if half else 99)
        k_scale[where], v_scale[where] = math.nan, math.inf

    def change() -> None:
        if kind == "lens":
            spoil((1, slice(3, None)))
        elif kind == "paged":
            used = {int(tensors[7][0, n]): 4 for n in range(2)}
            used |= {int(tensors[7][0, 2]): 1, int(tensors[7][1, 0]): 3}
            for page, slot in itertools.product(range(k.shape[0]), range(4)):
                if slot >= used.get(page, 0):
                    spoil((page, slot))
        else:  # the last key, which only the last query sees
            spoil((slice(None), 8))

    return tensors[:6], keywords, change


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", ["dense", "lens", "paged"])
@pytest.mark.parametrize("impl", ["cpu", "cuda", "rows", "reference"])
def test_unseen_is_not_read(impl: str, kind: str, half: bool) -> None:
    tensors, keywords, change = hidden(kind, half)
    run = runner(impl)
    before = run(tensors, keywords)
    change()
    after = run(tensors, keywords)
    assert before.isfinite().all()
    if kind == "dense":
        # Where a value is not finite, sums are formed in another order.
        torch.testing.assert_close(before[:, :1], after[:, :1], rtol=3e-6, atol=3e-6)
        assert not after[:, 1].isfinite().any()
    else:
        assert torch.equal(before, after)


def runner(impl: str) -> Callable[[list[Tensor], dict[str, Any]], Tensor]:
    """The named kernel as a function of tensors and keywords; CUDA's are emulated."""

    def run(tensors: list[Tensor], keywords: dict[str, Any]) -> Tensor:
        if impl in ("cpu", "reference"):
            return int8_attention(*tensors, **keywords, impl=impl)
        wide = tensors
        if impl == "rows":  # heads of 264, of which all but the first are 0
            wide = [torch.nn.functional.pad(t, (0, 264 - t.shape[3])) for t in tensors[:3]]
            wide += tensors[3:]
        results = emulated(lambda: cuda.launch_form(*wide, True, 0.2, Form(**keywords)))
        return results[0][..., : tensors[0].shape[3]]

    return run


@pytest.mark.parametrize("odd", [math.nan, math.inf])
@pytest.mark.parametrize("kernel", ["cpu", "reference", "attend", "general", "blocks"])
def test_rows_that_see_no_key_are_zeros_whatever_the_scales(kernel: str, odd: float) -> None:
    """Also those whose scores would be computed with a scale that is not finite."""
    torch.manual_seed(6)
    heads = 54 if kernel == "blocks" else 2
    sizes = dict(batch=2, seq=140, kv_seq=130) if heads > 2 else dict(batch=1, seq=9, kv_seq=4)
    given = problem.get_inputs(**sizes, heads=heads, head_dim=32)
    form = PLAIN if kernel == "attend" else Form(with_lse=True)
    if kernel == "blocks":
        chosen = cuda.dense_plan(tuple(given), True, 0.2, form, 108)
        assert chosen is not None and chosen.kernel.name.startswith("attend_blocks")
    hidden_rows = given[0].shape[1] - given[1].shape[1]
    for changed in (3, 4, 5):
        inputs = [t.clone() for t in given]
        inputs[changed][-1] = odd
        if kernel in ("cpu", "reference"):
            got = int8_attention(*inputs, scale=0.2, return_lse=True, impl=kernel)
        elif kernel == "attend":
            args = (*inputs, True, 0.2)
            got = emulated(lambda args=args: contract._run("cuda", args, {})), None
        else:
            got = emulated(lambda args=inputs: cuda.launch_form(*args, True, 0.2, form))
        out, lse = got
        assert (out[:, :hidden_rows] == 0).all()
        assert lse is None or lse[:, :hidden_rows].isneginf().all()
        assert out[:, :, :-1].isfinite().all()  # the other heads
        assert math.isinf(odd) or not out[:, hidden_rows:, -1].isfinite().any()


@pytest.mark.parametrize("dim", [31, 33, 72, 96])
def test_padding_is_not_data(dim: int) -> None:
    """Rows followed by other bytes, at heads that are no tile's width."""
    torch.manual_seed(3)
    tensors = problem_forms.get_inputs(batch=1, seq=5, heads=2, head_dim=dim)
    form = Form(with_lse=True)
    spaced = [
        torch.nn.functional.pad(t, (1, 3), value=111)[..., 1 : 1 + dim] for t in tensors[:3]
    ] + tensors[3:]
    assert_right(pair(int8_attention(*spaced, return_lse=True)), tensors, True, form)
    got = emulated(lambda: cuda.launch_form(*spaced, True, dim**-0.5, form))
    assert_right(got, tensors, True, form)


# ---- CUDA, emulated ----


def emulated(run: Callable[[], Any]) -> Any:
    """The result; any finding (a race, a read of unwritten memory, ...) is a failure."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")
    from kernelproof.emulate.standin import Recorder, standing_in

    recorder = Recorder()
    with standing_in(recorder):
        out = run()
    assert [str(f) for r in recorder.taken() for f in r.findings] == []
    return out


@pytest.mark.parametrize(
    "name",
    [
        "default",
        "half_values",
        "high_half_values",
        "lse",
        "packed_per_head",
        "paged_blocks",
        "head_dim_300",
    ],
)
def test_cuda_emulated(name: str) -> None:
    tensors, causal, form, _ = made(name)
    dim = tensors[0].shape[3]
    options = {
        "strict": form.strict, "out_dtype": form.out_dtype, "block": form.block,
        "cu_seqlens_q": form.cu_seqlens_q, "cu_seqlens_k": form.cu_seqlens_k,
        "kv_lens": form.kv_lens, "block_table": form.block_table,
    }  # fmt: skip
    if form == PLAIN:
        options = {}  # as the public function calls the operator
    run = contract._run_lse if form.with_lse else contract._run
    got = emulated(lambda: run("cuda", (*tensors, causal, dim**-0.5), options))
    assert_right(pair(got), tensors, causal, form)


@pytest.mark.parametrize(("strict", "dim"), [(True, 32), (False, 32), (True, 80), (False, 16)])
def test_cuda_blocks_emulated(strict: bool, dim: int) -> None:
    """Long dense inputs, whose kernel takes every output; scales of both signs; heads narrower than
    the instance, where what follows a row must not be read as data."""
    torch.manual_seed(11)
    inputs = problem.get_inputs(
        batch=2, seq=65, kv_seq=130, heads=54, head_dim=dim, scale_low=-0.025
    )
    spaced = [
        torch.nn.functional.pad(t, (0, 16), value=111)[..., :dim] for t in inputs[:3]
    ] + inputs[3:]
    form = Form(strict, torch.float32 if strict else torch.bfloat16, with_lse=True)
    chosen = cuda.dense_plan(tuple(spaced), True, dim**-0.5, form, 108)
    assert chosen is not None and chosen.kernel.name.startswith("attend_blocks")
    assert chosen.kernel.name.endswith("true>") == (dim != 32)
    got = emulated(lambda: cuda.launch_form(*spaced, True, dim**-0.5, form))
    assert_right(got, inputs, True, form)


def test_cuda_split_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks share the keys; one of them may see none."""
    monkeypatch.setattr(cuda_general, "_splits", lambda *_: 3)
    cuda_general.plan_for.cache_clear()
    torch.manual_seed(4)
    tensors = problem_forms.get_inputs(kind="lens", seq=2, kv_seq=150, lens=(150, 0, 20), heads=8)
    form = Form(kv_lens=tensors[6], with_lse=True)
    got = emulated(lambda: cuda.launch_form(*tensors[:6], True, 32**-0.5, form))
    cuda_general.plan_for.cache_clear()
    assert_right(got, tensors[:6], True, form)


def test_cuda_any_inner_stride_emulated() -> None:
    torch.manual_seed(5)
    tensors = problem_forms.get_inputs(batch=1, seq=6, heads=2, head_dim=32)
    turned = [t.mT.contiguous().mT for t in tensors[:3]] + tensors[3:]
    for form in (PLAIN, Form(with_lse=True, strict=False)):
        got = emulated(lambda form=form: cuda.launch_form(*turned, True, 32**-0.5, form))
        assert_right(got, tensors, True, form)
        assert_right(cpu.launch_form(*turned, True, 32**-0.5, form), tensors, True, form)
    wide = problem_forms.get_inputs(batch=1, seq=2, heads=2, head_dim=260)
    turned = [t.mT.contiguous().mT for t in wide[:3]] + wide[3:]
    got = emulated(lambda: cuda.launch_form(*turned, True, 260**-0.5, PLAIN))
    assert_right(got, wide, True, PLAIN)


INSTANCES = [
    "attend_general<32, false, true, true, false>",
    "attend_general<64, true, true, false, true>",
    "attend_general<96, false, false, true, true>",
    "attend_general<128, false, true, false, false>",
]


@pytest.mark.parametrize("name", ["prefill", "high_prefill", "fast_prefill"])
def test_prefill_cases_reach_the_kernel_for_many_queries(name: str) -> None:
    from kernelproof.emulate.standin import Recorder, standing_in

    tensors, _, form, _ = made(name)
    with standing_in(Recorder(hopper=True)):
        assert cuda_wgmma.why_not(tuple(tensors), form, 132) == ""


@pytest.mark.parametrize("name", [*INSTANCES, "attend_rows", "combine_parts"])
def test_cuda_compiles(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert cuda_general.kernel(name).compile("sm_90a")


def test_cuda_blocks_of_part_of_a_width_compile() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    assert cuda.kernel("attend_blocks<96, true, false, true>").compile("sm_90a")


def test_splits_fill_the_gpu() -> None:
    assert cuda_general._splits(264, 100_000, 132) == 1
    assert cuda_general._splits(8, 32_768, 132) == 32  # 256 of 264 places
    assert cuda_general._splits(128, 32_768, 132) == 2
    assert cuda_general._splits(1, 500, 132) == 1


# ---- the tiers ----


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_high_bound_and_a_lower_precision(seed: int) -> None:
    """fp16 probabilities keep the bound of "high", bf16 ones break it; both break "strict"."""
    torch.manual_seed(seed)
    tensors = problem_forms.get_inputs(batch=1, seq=60, kv_seq=300, head_dim=64)
    wide = [*tensors[:3], *(t.double() for t in tensors[3:])]
    truth = attend(*wide, True, 0.125)[0]

    def error(rounding: Callable[[Tensor], Tensor]) -> float:
        return relative(attend(*tensors, True, 0.125, PLAIN, rounding)[0], truth)

    assert BOUNDS["strict"] < error(lambda w: problem_forms.rounded(w, 1.0)) <= BOUNDS["high"]
    assert error(lambda w: w.bfloat16().float()) > BOUNDS["high"]


CANDIDATE = """
from kernelproof.ops.int8_attention.model import ProblemModel
from kernelproof.ops.int8_attention.reference import attend

import torch

def rounded(weights):
    largest = weights.amax(-1, keepdim=True) * {factor}
    return (weights / largest).to({dtype}).to(weights.dtype) * largest

class ModelNew(ProblemModel):
    def forward(self, *tensors):
        return self.run(lambda *six, form=None: attend(*six, rounding=rounded), tensors)
"""


@pytest.mark.parametrize(
    ("dtype", "factor", "case", "status"),
    [
        ("torch.half", 1.0, "high", "pass"),
        # The largest weight, which counts for most, is rounded too.
        ("torch.half", 1.37, "high", "pass"),
        ("torch.bfloat16", 1.0, "fast", "wrong"),
        ("torch.half", 1.0, "default", "wrong"),  # where "strict" is asked for
    ],
)
def test_the_verdict_tells_the_tiers_apart(
    dtype: str, factor: float, case: str, status: str, tmp_path: Path
) -> None:
    path = tmp_path / "candidate.py"
    path.write_text(CANDIDATE.format(dtype=dtype, factor=factor))
    options = Options(device="cpu", level="quick", seeds=3, seed=5, cases=(case,))
    record = judge("int8_attention_forms", path, options=options)
    assert record.verdict.status == status, record.verdict


# ---- quantisation ----


@pytest.mark.parametrize(("granularity", "block"), [("head", None), ("token", None), ("block", 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantize(granularity: Any, block: int | None, dtype: torch.dtype) -> None:
    torch.manual_seed(6)
    x = torch.randn(2, 7, 3, 5).to(dtype)
    x[0, 2] = 0.0
    values, scale = quantize_int8(x, granularity, block=block)
    shapes = {"head": (3,), "token": (2, 7, 3), "block": (2, 3, 3)}
    assert values.dtype == torch.int8 and scale.dtype == torch.float32
    assert scale.shape == shapes[granularity] and (scale > 0).all()
    spread = scale if scale.dim() == 1 else scale.repeat_interleave(block or 1, 1)[:, :7]
    error = (values.double() * spread.unsqueeze(-1).double() - x.double()).abs()
    assert (error <= spread.unsqueeze(-1) * (0.5 + 1e-5)).all()
    assert (values[0, 2] == 0).all() and values.abs().max() == 127
    half, same = quantize_int8(x, granularity, block=block, dtype=torch.float16)
    assert half.dtype == torch.float16 and torch.equal(half, values.half())
    assert torch.equal(scale, same)


def test_quantize_rules() -> None:
    x = torch.zeros(1, 4, 1, 3)
    x[0, 0, 0] = torch.tensor([127.0, 0.5, 1.5])  # halves go to the even neighbour
    x[0, 2, 0] = torch.tensor([math.nan, 5.0, -5.0])
    x[0, 3, 0] = torch.tensor([math.inf, 5.0, -5.0])
    values, scale = quantize_int8(x, "token")
    assert values[0, :2, 0].tolist() == [[127, 0, 2], [0, 0, 0]]
    assert scale[0, :2, 0].tolist() == [1.0, 1.0]
    assert scale[0, 2:].isnan().all() and (values[0, 2:] == 0).all()
    tiny, scale = quantize_int8(torch.full((1, 1, 1, 2), 1e-44))
    assert scale.tolist() == [1.0] and (tiny == 0).all()
    for shape in ((0, 4, 2, 3), (2, 0, 2, 3), (2, 4, 0, 3), (2, 4, 2, 0)):
        for granularity, block in (("head", None), ("token", None), ("block", 2)):
            values, _ = quantize_int8(torch.zeros(shape), granularity, block=block)
            assert values.shape == shape


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x": torch.zeros(1, 1, 1, 1, dtype=torch.int8)}, TypeError, "x is torch.int8"),
        ({"x": torch.zeros(2, 2)}, ValueError, r"\(2, 2\)"),
        ({"granularity": "channel"}, ValueError, "'channel'"),
        ({"granularity": "block"}, ValueError, "block=None"),
        ({"block": 4}, ValueError, "block=4"),
        ({"granularity": "block", "block": 0}, ValueError, "block=0"),
        ({"dtype": torch.int16}, TypeError, "torch.int16"),
    ],
)
def test_quantize_errors(change: dict[str, Any], error: type[Exception], text: str) -> None:
    arguments: dict[str, Any] = {"x": torch.zeros(1, 1, 1, 1), **change}
    with pytest.raises(error, match=text):
        quantize_int8(**arguments)


# ---- the front, and gradients ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_front(dtype: torch.dtype, causal: bool) -> None:
    torch.manual_seed(7)
    query, key, value = (torch.randn(2, h, 24, 16).to(dtype) for h in (4, 2, 2))
    out = scaled_dot_product_int8(query, key, value, is_causal=causal)
    truth = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=causal, enable_gqa=True
    )
    assert out.dtype == dtype and out.shape == truth.shape
    assert relative(out, truth) <= 0.02  # of int8 itself
    layer = Int8Attention(granularity="block", block=5, accuracy="strict")
    assert relative(layer(query, key, value, causal), truth) <= 0.03
    assert "block=5" in repr(layer)


def test_backward_is_straight_through() -> None:
    """Gradients equal those of float64 attention at the quantised values."""
    torch.manual_seed(8)
    tensors = [torch.randn(2, h, s, 8) for h, s in ((4, 7), (2, 11), (2, 11))]
    with pytest.raises(RuntimeError, match='backward="straight_through"'):
        scaled_dot_product_int8(tensors[0].requires_grad_(), *tensors[1:])
    for causal in (False, True):
        leaves = [t.detach().requires_grad_() for t in tensors]
        out = scaled_dot_product_int8(
            *leaves, is_causal=causal, accuracy="strict", backward="straight_through"
        )
        grad = torch.randn(out.shape)
        out.backward(grad)
        wide = []
        for t in tensors:
            values, scale = quantize_int8(t.transpose(1, 2), "token")
            wide.append((values.double() * scale.unsqueeze(-1).double()).transpose(1, 2))
        wide = [t.detach().requires_grad_() for t in wide]
        mask = torch.ones(7, 11, dtype=torch.bool)
        mask = mask.tril(4) if causal else mask
        torch.nn.functional.scaled_dot_product_attention(
            *wide, attn_mask=mask, enable_gqa=True
        ).backward(grad.double())
        for mine, truth in zip(leaves, wide, strict=True):
            assert mine.grad is not None and truth.grad is not None
            assert relative(mine.grad, truth.grad) <= 1e-5


def test_backward_in_blocks_and_of_rows_that_see_nothing() -> None:
    torch.manual_seed(9)
    q, k, v = torch.randn(1, 9, 2, 4), torch.randn(1, 5, 1, 4), torch.randn(1, 5, 1, 4)
    one = torch.ones(2), torch.ones(1), torch.ones(1)
    q, k, v = ((4 * t).round() for t in (q, k, v))
    out, lse = int8_attention(q.to(torch.int8), k.to(torch.int8), v.to(torch.int8), *one,
                              scale=0.1, return_lse=True)  # fmt: skip
    grad = torch.randn(out.shape)
    whole = attention_backward(grad, q, k, v, out, lse, True, 0.1)
    parts = attention_backward(grad, q, k, v, out, lse, True, 0.1, rows=2)
    torch.testing.assert_close(whole, parts)
    assert (whole[0][:, :4] == 0).all() and all(g.isfinite().all() for g in whole)


def test_front_errors() -> None:
    x = torch.zeros(1, 1, 2, 4)
    with pytest.raises(ValueError, match="backward is 'yes'"):
        scaled_dot_product_int8(x, x, x, backward="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must be \(B, H, S, D\)"):
        scaled_dot_product_int8(x[0], x, x)


# ---- the operator ----


def test_opcheck() -> None:
    for name in ("lse", "paged_blocks", "packed_per_head", "high_half_values"):
        tensors, causal, form, _ = made(name)
        options = {
            "strict": form.strict, "out_dtype": form.out_dtype, "block": list(form.block),
            "cu_seqlens_q": form.cu_seqlens_q, "cu_seqlens_k": form.cu_seqlens_k,
            "kv_lens": form.kv_lens, "block_table": form.block_table,
        }  # fmt: skip
        ops = torch.ops.kernelproof
        op = ops.int8_attention_lse.default if form.with_lse else ops.int8_attention.default
        # Fake tensors have no values; the lengths' are needed only by the kernel.
        torch.library.opcheck(op, (*tensors, causal, 0.25), options)


def test_compile() -> None:
    tensors, _, _, keywords = made("paged_blocks")

    def two(*inputs: Tensor) -> Tensor:
        out, lse = int8_attention(*inputs, **keywords)
        return out * lse.exp().unsqueeze(-1)

    compiled = torch.compile(two, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*tensors), two(*tensors), rtol=0, atol=0, equal_nan=True)

    def front(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_int8(q, k, v, is_causal=True, backward="straight_through")

    leaves = [torch.randn(1, 2, 6, 8, requires_grad=True) for _ in range(3)]
    front(*leaves).square().sum().backward()
    grads = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    torch.compile(front, fullgraph=True, backend="aot_eager")(*leaves).square().sum().backward()
    torch.testing.assert_close([leaf.grad for leaf in leaves], grads)


def test_explain() -> None:
    tensors, _, _, keywords = made("paged_blocks")
    text = explain(*tensors, **keywords)
    assert cpu.instructions() in text and "computed as strict" in text
    assert "eager PyTorch" in explain(*tensors, **keywords, impl="reference")
    with pytest.raises(UnsupportedError, match="no Triton kernel"):
        explain(*tensors, **keywords, impl="triton")


def explained_on_gpu(tensors: list[Tensor], form: Form) -> str:
    return "\n".join(cuda_general.explanation(tuple(tensors), form, 132))


def test_explain_of_cuda_plans() -> None:
    tensors = problem_forms.get_inputs(batch=2, seq=1, kv_seq=8192, head_dim=96)
    text = explained_on_gpu(tensors, Form(strict=False))
    assert "attend_general<96, false, true, false, false>" in text
    assert "16 blocks, then combine_parts" in text and "fp16 (high" in text
    assert "attend_rows" in explained_on_gpu(problem_forms.get_inputs(head_dim=300), Form())


def changed(**changes: Any) -> Callable[[], Any]:
    """A call of a paged case with other arguments."""

    def run() -> Any:
        tensors, _, _, keywords = made("paged_blocks")
        named = dict(zip(("q", "k", "v", "q_scale", "k_scale", "v_scale"), tensors, strict=True))
        return int8_attention(**{**named, **keywords, **changes})

    return run


LENS = torch.tensor([30, 9], dtype=torch.int32)
ENDS = torch.tensor([0, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    ("run", "error", "text"),
    [
        (changed(accuracy="exact"), ValueError, "accuracy is 'exact'"),
        (changed(out_dtype=torch.float64), ValueError, "out_dtype is torch.float64"),
        (changed(impl="triton"), UnsupportedError, "no Triton kernel"),
        (changed(block=(1, 4)), ValueError, r"block is \(1, 4\)"),
        (changed(block=0), ValueError, "at least 1"),
        (changed(block=None), ValueError, "k_scale must be .* blocks are told with block="),
        (changed(kv_lens=None), ValueError, "block_table needs kv_lens"),
        (changed(kv_lens=LENS.long()), TypeError, r"\.int\(\)"),
        (changed(kv_lens=LENS[:1]), ValueError, "first size must be B = 2"),
        (changed(kv_lens=LENS + 100), ValueError, r"kv_lens is \[130, 109\]"),
        (changed(block_table=LENS), ValueError, "must have 2 axes"),
        (
            changed(block_table=torch.full((2, 5), 77, dtype=torch.int32)),
            ValueError, "pages 77 to 77; the cache has pages 0 to",
        ),
        (changed(cu_seqlens_q=ENDS), ValueError, "given together"),
        (changed(cu_seqlens_q=ENDS, cu_seqlens_k=ENDS), ValueError, "exclude kv_lens"),
    ],
)  # fmt: skip
def test_errors(run: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run()


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ([0, 9, 5, 26, 27], r"cu_seqlens_q is \[0, 9, 5, 26, 27\]; it must rise from 0 to 27"),
        ([1, 9, 9, 26, 27], "must rise"),
        ([0, 9, 9, 26, 28], "must rise"),
        ([0, 27], "must both be"),
    ],
)
def test_packed_errors(ends: list[int], text: str) -> None:
    tensors, _, form, keywords = made("packed")
    keywords["cu_seqlens_q"] = torch.tensor(ends, dtype=torch.int32)
    with pytest.raises(ValueError, match=text):
        int8_attention(*tensors, **keywords)
    with pytest.raises(ValueError, match=r"q must be \(1, tokens, Hq, D\)"):
        int8_attention(*(t.expand(2, *t.shape[1:]) for t in tensors),
                       cu_seqlens_q=form.cu_seqlens_q, cu_seqlens_k=form.cu_seqlens_k)  # fmt: skip


def test_gradient_errors() -> None:
    tensors, _, _, keywords = made("half_values")
    tensors[2].requires_grad_()
    with pytest.raises(RuntimeError, match='backward="straight_through"'):
        int8_attention(*tensors, **keywords)
    int8_attention(*tensors, **keywords, impl="reference").sum().backward()
    assert tensors[2].grad is not None and tensors[2].grad.isfinite().all()


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("name", problem_forms.CASES)
def test_gpu(name: str) -> None:
    tensors, causal, form, keywords = made(name)
    moved = {
        key: value.cuda() if isinstance(value, Tensor) else value for key, value in keywords.items()
    }
    on_gpu = [t.cuda() for t in tensors]
    out, lse = pair(int8_attention(*on_gpu, **moved))
    again, _ = pair(int8_attention(*on_gpu, **moved))
    assert torch.equal(out, again)
    assert_right((out.cpu(), None if lse is None else lse.cpu()), tensors, causal, form)


@pytest.mark.gpu
@pytest.mark.parametrize("name", problem_forms.CASES)
def test_gpu_calls_of_a_seen_form(name: str) -> None:
    """The same bits as the first call, also of other tensors."""
    for seed in (3, 4, 3):
        tensors, causal, form, keywords = made(name, seed)
        keywords = {n: x.cuda() if isinstance(x, Tensor) else x for n, x in keywords.items()}
        cuda_tensors = [t.cuda() for t in tensors]
        first, again = (pair(int8_attention(*cuda_tensors, **keywords)) for _ in range(2))
        got = [None if t is None else t.cpu() for t in again]
        assert got[0] is not None and torch.equal(first[0].cpu(), got[0])
        assert_right((got[0], got[1]), tensors, causal, form)


@pytest.mark.gpu
@pytest.mark.parametrize("accuracy", ["strict", "high"])
@pytest.mark.parametrize("dim", [64, 128])
def test_gpu_long_decode(accuracy: str, dim: int) -> None:
    """Split over many blocks, with a pool of pages; errors must not grow with the length."""
    torch.manual_seed(10)
    tensors = problem_forms.get_inputs(
        kind="paged", seq=3, lens=(9000, 1, 5003), page=64, heads=8, head_dim=dim
    )
    form = Form(accuracy == "strict", kv_lens=tensors[6], block_table=tensors[7], with_lse=True)
    moved = Form(
        form.strict, kv_lens=tensors[6].cuda(), block_table=tensors[7].cuda(), with_lse=True
    )
    on_gpu = [t.cuda() for t in tensors[:6]]
    out, lse = cuda.launch_form(*on_gpu, True, dim**-0.5, moved)
    assert lse is not None
    assert_right((out.cpu(), lse.cpu()), tensors[:6], True, form)


@pytest.mark.gpu
def test_gpu_graph() -> None:
    tensors, _, _, keywords = made("paged_blocks")
    moved = {k: v.cuda() if isinstance(v, Tensor) else v for k, v in keywords.items()}
    on_gpu = [t.cuda() for t in tensors]
    expected, _ = int8_attention(*on_gpu, **moved)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, _ = int8_attention(*on_gpu, **moved)
    out.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
