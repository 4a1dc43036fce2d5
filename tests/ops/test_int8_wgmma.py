"""attend_wgmma: under the emulator, in what the assembler makes of it, and in when it is chosen."""

from __future__ import annotations

import functools
import math
import re
from typing import Any
from unittest import mock

import int8_sass
import pytest
import torch
from torch import Tensor

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.inspect import sass, tools
from kernelproof.ops.int8_attention import (
    cuda,
    cuda_quick,
    cuda_wgmma,
    int8_attention,
    problem_forms,
)
from kernelproof.ops.int8_attention.contract import PLAIN, Form
from kernelproof.ops.int8_attention.reference import attend

BOUNDS = {True: 1e-6, False: 3e-4}
ROUNDING = {torch.float32: 0.0, torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
F = math.inf


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def made(
    q: tuple[int, ...], k: tuple[int, ...], granularity: str = "", block: tuple[int, ...] = (),
    half: bool = False, signs: bool = False, dim: int = 64, seed: int = 0,
) -> list[Tensor]:  # fmt: skip
    """q (B, Sq, Hq), k (B, Skv, Hkv); scales per head, or per token of those named by letters."""
    torch.manual_seed(seed)
    tensors = [torch.randint(-128, 128, (*n, dim), dtype=torch.int8) for n in (q, k, k)]
    if half:
        tensors[2] = (tensors[2] * 0.37).half()
    for letter, n, size in zip("qkv", (q, k, k), block or (1, 1, 1), strict=True):
        shape = (n[0], -(-n[1] // size), n[2]) if letter in granularity else (n[2],)
        scale = torch.rand(shape) * 0.02 + 0.005
        if signs:
            scale.view(-1)[1::2] *= -1
        tensors.append(scale)
    return tensors


def emulated(
    tensors: list[Tensor], form: Form, causal: bool = True, factor: float = 0.1,
    inside: bool | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """By the launcher that everybody uses, on a GPU of two multiprocessors, however small.
    ``inside``: whether int8 values with scales per head become fp16 in shared memory."""
    recorder = Recorder(hopper=True)
    limits = dict.fromkeys(cuda_wgmma._INSIDE_QUERIES, inside * 2**30) if inside is not None else {}
    with (
        mock.patch.dict(cuda_wgmma._INSIDE_QUERIES, limits),
        standing_in(recorder),
        mock.patch.object(cuda, "processors", lambda index: 2),
        mock.patch.object(cuda_wgmma, "slower", lambda *given: ""),
    ):
        out, lse = cuda.launch_form(*tensors, causal, factor, form)
    results = recorder.taken()
    assert [str(f) for r in results for f in r.findings] == []
    kernels = {r.kernel.split("<")[0] for r in results}
    assert "attend_wgmma" in kernels
    assert inside is None or ("widen_values" in kernels) != inside
    assert lse is not None
    return out, lse


def assert_right(
    got: tuple[Tensor, Tensor], tensors: list[Tensor], form: Form, causal: bool = True,
    factor: float = 0.1,
) -> None:  # fmt: skip
    """Also where the exact result is not finite: the same there."""
    wide = [*tensors[:3], *(t.double() for t in tensors[3:])]
    truth, sums = attend(*wide, causal, factor, form)
    out, lse = got[0].double().cpu(), got[1].double().cpu()
    truth, sums = truth.cpu(), sums.cpu()
    finite = truth.isfinite()
    assert torch.equal(out.isfinite(), finite) and torch.equal(out.isnan(), truth.isnan())
    assert torch.equal(out[truth.isinf()], truth[truth.isinf()])
    error = (out - truth)[finite].norm() / truth[finite].norm()
    assert error <= BOUNDS[form.strict] + ROUNDING[form.out_dtype]
    assert torch.equal(lse.isneginf(), sums.isneginf())
    seen = sums.isfinite()
    assert ((lse - sums)[seen].abs() <= 1e-6 * (1 + sums[seen].abs())).all()


# Rows of two tiles with GQA and lengths that differ; rows that see nothing; negative scales; more
# tiles of keys than stages; each width that is compiled.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "high": (dict(q=(1, 129, 2), k=(1, 200, 1)), dict(strict=False)),
    "strict": (dict(q=(1, 130, 2), k=(1, 90, 2), signs=True), dict(strict=True)),
    "wide": (dict(q=(1, 128, 2), k=(1, 300, 2), dim=128), dict(strict=True)),
    "widest": (dict(q=(2, 128, 1), k=(2, 190, 1), dim=256), dict(strict=False)),
    "widest strict": (
        dict(q=(1, 129, 1), k=(1, 150, 1), dim=256, signs=True),
        dict(strict=True, out_dtype=torch.float16),
    ),
    "two halves": (
        dict(q=(1, 128, 2), k=(1, 70, 2), granularity="qkv", dim=144), dict(strict=True)
    ),
    "half": (
        dict(q=(2, 128, 2), k=(2, 140, 2), half=True, dim=80),
        dict(strict=True, kv_lens=ints(140, 70)),
    ),
    "narrow": (
        dict(q=(2, 128, 1), k=(2, 140, 1), dim=48),
        dict(strict=False, kv_lens=ints(140, 0), out_dtype=torch.float16),
    ),
    "packed": (
        dict(q=(1, 220, 2), k=(1, 250, 1), dim=80),
        dict(
            strict=False, out_dtype=torch.bfloat16,
            cu_seqlens_q=ints(0, 100, 100, 220), cu_seqlens_k=ints(0, 110, 130, 250),
        ),
    ),
    "tokens": (
        dict(q=(1, 128, 2), k=(1, 150, 1), granularity="qkv", signs=True), dict(strict=False)
    ),
    "blocks": (
        dict(q=(2, 128, 1), k=(2, 130, 1), granularity="kv", block=(1, 16, 32), dim=96),
        dict(strict=True, block=(1, 16, 32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str) -> None:
    sizes, options = CASES[name]
    tensors, form = made(**sizes), Form(with_lse=True, **options)
    causal = name != "widest"
    assert_right(emulated(tensors, form, causal), tensors, form, causal)


# Each number of columns that has its own way through shared memory; rows behind the end of a
# sequence, and more tiles than stages.
INSIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "64": (dict(q=(1, 100, 2), k=(1, 700, 1)), dict(strict=False)),
    "80": (dict(q=(2, 70, 1), k=(2, 90, 1), dim=80), dict(strict=True, kv_lens=ints(90, 40))),
    "96": (dict(q=(1, 129, 1), k=(1, 129, 1), dim=96), dict(strict=True)),
    "112 of 128": (
        dict(q=(1, 200, 1), k=(1, 250, 1), dim=112),
        dict(strict=False, cu_seqlens_q=ints(0, 70, 200), cu_seqlens_k=ints(0, 110, 250)),
    ),
    "128": (dict(q=(1, 128, 1), k=(1, 400, 1), dim=128), dict(strict=True)),
    "256": (dict(q=(1, 70, 1), k=(1, 150, 1), dim=256), dict(strict=True)),
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", INSIDE)
def test_where_values_become_fp16(name: str, inside: bool) -> None:
    sizes, options = INSIDE[name]
    tensors, form = made(**sizes), Form(with_lse=True, **options)
    assert_right(emulated(tensors, form, True, 0.1, inside), tensors, form)


@pytest.mark.parametrize("factor", [0.0, 3000.0])
def test_any_factor(factor: float) -> None:
    """Also where scores are so large that only their difference to the largest is exact."""
    tensors, form = made((1, 128, 2), (1, 128, 2), signs=True), Form(False, with_lse=True)
    assert_right(emulated(tensors, form, True, factor), tensors, form, True, factor)


@pytest.mark.parametrize("granularity", ["", "qkv"])
@pytest.mark.parametrize("factor", [1e-4, 0.1, 3000.0])
def test_the_lse_of_one_key_is_its_score(factor: float, granularity: str) -> None:
    """Relative to its own size, however small: no error of an exponential stays in it."""
    tensors = made((1, 130, 2), (1, 130, 2), granularity, signs=True)
    form = Form(True, with_lse=True)
    _, lse = emulated(tensors, form, True, factor)
    _, sums = attend(*tensors[:3], *(t.double() for t in tensors[3:]), True, factor, form)
    assert sums[0, 0].abs().max() > 0
    assert ((lse - sums)[:, 0].abs() <= 5e-7 * sums[:, 0].abs()).all()


@pytest.mark.parametrize("granularity", ["", "qkv"])
def test_the_lse_is_exact_where_the_reference_is_not_the_largest(granularity: str) -> None:
    """The tile of keys that comes first has a score 7 powers of two below the largest, too near for
    the reference to follow. The largest is 0, and log(1 + 2^-7) is what is left."""
    tensors = made((1, 128, 1), (1, 200, 1), granularity)
    for scale in tensors[3:5]:
        scale.fill_(1.0)
    tensors[0].fill_(1)
    tensors[1].fill_(-127)
    tensors[1][0, 3] = 0
    tensors[1][0, 199] = -7
    tensors[1][0, 199, 0, :37] = -8
    factor, form = 7 * math.log(2.0) / 485, Form(True, with_lse=True)
    _, lse = emulated(tensors, form, False, factor)
    assert ((lse - math.log1p(2.0**-7)).abs() <= 5e-7 * math.log1p(2.0**-7)).all()


@pytest.mark.parametrize("kind", ["values", "scales"])
def test_what_is_not_finite_reaches_those_who_see_it(kind: str) -> None:
    """NaN and infinities of a packed sequence's last tokens, and of none before."""
    ends = dict(cu_seqlens_q=ints(0, 130, 260), cu_seqlens_k=ints(0, 130, 260))
    form = Form(False, with_lse=True, **ends)
    tensors = made((1, 260, 2), (1, 260, 2), "v" if kind == "scales" else "", half=kind == "values")
    if kind == "values":
        tensors[2][0, [129, 250, 252, 259], 0, 3] = torch.tensor([math.nan, F, -F, F]).half()
        tensors[2][0, 128, 0, 5] = -F
    else:
        tensors[5][0, [128, 259], 0] = torch.tensor([math.nan, -F])
    assert_right(emulated(tensors, form), tensors, form)


def test_one_key_with_any_probability_is_within_the_verdict() -> None:
    """The exponents' reference need not be the row's largest score, so the probability of the key
    that counts for most is any number: rounded for the product, by up to 2^-11, and not in the sum.
    The verdict allows 12 times what the problem's own reference makes of the weight."""
    weights = torch.tensor([1.0, 1.5, 2047 / 1024, 2.0**-6, 0.013, 0.0217, 0.0099])[:, None]
    own = (problem_forms.rounded(weights) / weights - 1).abs()
    assert (12 * own >= 2.0**-11).all() and (12 * own <= 1e-3).all()


def instances() -> list[str]:
    """Each way in which queries and products are kept; the others differ from these in sizes."""
    asked = ((64, 0, 0, 0), (128, 0, 0, 0), (128, 1, 0, 0), (128, 0, 1, 0), (128, 0, 0, 1),
             (256, 0, 0, 0), (256, 1, 0, 1))  # fmt: skip
    plans = [
        cuda_wgmma._plan_for(
            (1, 128, 1, width), (1, 128, 1, width), bool(strict), bool(tokens), False, 0, 1,
            bool(inside),
        )
        for width, strict, tokens, inside in asked
    ]  # fmt: skip
    return [plan.kernel.name for plan in plans]


@functools.cache
def assembled(name: str) -> tuple[str, str]:
    """The disassembler's text, and what the assembler said."""
    pytest.importorskip("cuda.bindings.nvrtc")
    if tools.find("nvdisasm") is None:
        pytest.skip("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    code, symbol, said = cuda_wgmma.kernel(name).compile_verbose("sm_90a")
    sections = dict(sass._sections(sass.disassemble(code)))
    return "\n".join(sections[symbol]), said


@pytest.mark.parametrize("name", instances())
def test_assembled_as_meant(name: str) -> None:
    text, said = assembled(name)
    keys = int(re.findall(r"\d+", name)[1])
    assert "serialized" not in said and not re.search(r"C75(?!19)\d\d", said)
    loop = int8_sass.main_loop(text)
    assert int8_sass.overwritten(loop) == []
    shared = name.split(", ")[5] == "true"
    assert bool(int8_sass.query_registers(loop)) != shared
    counts = int8_sass.exponentials_beside_the_product(loop)
    assert counts and min(counts) >= 0.9 * keys // 2
    assert int8_sass.longest_row_of_exponentials(loop) <= 10
    assert not re.search(r"\b[HI]MMA\.", text)
    # Of the 24 that the loading warpgroup keeps two are the hardware's own.
    assert int8_sass.highest_register_of_loader(text) <= 21


def test_the_lint_finds_what_it_is_for() -> None:
    """One pack of probabilities that goes to a query's register; exponentials behind the wait."""
    text, _ = assembled(instances()[0])
    loop = int8_sass.main_loop(text)
    register = min(int8_sass.query_registers(loop))
    number = next(i for i, (_, op, _) in enumerate(loop) if op.startswith("F2FP"))
    at, op, rest = loop[number]
    loop[number] = (at, op, re.sub(r"^R\d+", f"R{register}", rest))
    assert [line.split(":")[0] for line in int8_sass.overwritten(loop)] == [f"{at:#x}"]
    wide = re.sub(r"(DEALLOC[^\n]*\n)", r"\1 /*0001*/ STS.128 [R2], R20 ;\n", text)
    assert int8_sass.highest_register_of_loader(wide) == 23
    late = [i for i in loop if i[1].startswith("MUFU.EX2")]
    moved = [i for i in loop if not i[1].startswith("MUFU.EX2")] + late
    assert not any(int8_sass.exponentials_beside_the_product(moved))
    assert int8_sass.longest_row_of_exponentials(moved) == len(late)


def reason(tensors: list[Tensor], form: Form = PLAIN) -> str:
    with standing_in(Recorder(hopper=True)):
        return cuda_wgmma.unfit(tuple(tensors), form)


def faster_elsewhere(
    batch: int, q_len: int, heads: int, strict: bool, dim: int = 128, keys: int = 0,
    **options: Any,
) -> str:  # fmt: skip
    """The reason on a GPU of 132 multiprocessors, by shapes alone."""
    q = torch.empty((batch, q_len, heads, dim), dtype=torch.int8, device="meta")
    k = torch.empty((batch, keys or q_len, heads, dim), dtype=torch.int8, device="meta")
    scale = torch.empty(options.pop("scale", (heads,)), device="meta")
    return cuda_wgmma.slower((q, k, k, scale, scale, scale), Form(strict, **options), 132)


def test_small_calls_go_where_they_are_faster() -> None:
    """As timed on an H200; see attempts_prefill.md."""
    for strict in (False, True):
        assert "384 keys" in faster_elsewhere(4, 192, 32, strict)
        assert "384 keys" in faster_elsewhere(1, 256, 64, strict)
        assert faster_elsewhere(1, 384, 64, strict) == ""
        assert faster_elsewhere(2, 4096, 32, strict) == ""
        assert faster_elsewhere(2, 128, 64, strict) == ""
        assert "fewer than 64 queries" in faster_elsewhere(64, 63, 32, strict)
    assert "attend is faster" in faster_elsewhere(1, 64, 128, True)
    assert "attend is faster" in faster_elsewhere(1, 128, 32, True, keys=4096)
    assert faster_elsewhere(1, 128, 32, False, keys=4096) == ""
    assert faster_elsewhere(1, 128, 64, False) == ""
    assert "idle" in faster_elsewhere(1, 128, 64, False, dim=64)
    assert "idle" in faster_elsewhere(1, 128, 32, False)
    per_token = dict(scale=(1, 192, 16))
    assert "idle" in faster_elsewhere(1, 192, 16, True, **per_token)
    ends = torch.arange(0, 1025, 128)
    assert faster_elsewhere(1, 1024, 8, True, cu_seqlens_q=ends, cu_seqlens_k=ends) == ""
    assert "idle" in faster_elsewhere(1, 1024, 1, True, cu_seqlens_q=ends, cu_seqlens_k=ends)


def test_what_it_does_not_take() -> None:
    fitting = made((2, 300, 2), (2, 300, 1))
    assert reason(fitting) == ""
    with standing_in(Recorder()):
        assert "capability 9" in cuda_wgmma.unfit(tuple(fitting), Form())
    assert "pages" in reason(fitting, Form(kv_lens=ints(1, 1), block_table=ints(0, 1).view(2, 1)))
    assert "multiple of 16" in reason(made((2, 300, 2), (2, 300, 1), dim=40))
    assert "multiple of 16" in reason(made((2, 300, 2), (2, 300, 1), dim=272))
    assert reason(made((2, 300, 2), (2, 300, 1), dim=256)) == ""
    assert reason(made((2, 300, 2), (2, 300, 1), dim=256), Form(False)) == ""
    odd = made((2, 300, 2), (2, 300, 1), dim=80)
    odd[1] = torch.zeros(2, 300, 1, 88, dtype=torch.int8)[..., :80]
    assert "multiples of 16 bytes" in reason(odd)
    odd[1] = torch.zeros(2, 80, 1, 300, dtype=torch.int8).transpose(1, 3)
    assert "innermost stride" in reason(odd)
    assert "float16 values" in reason(made((2, 300, 2), (2, 300, 1), "v", half=True))


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dim", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize(
    ("q_len", "kv_len"), [(127, 127), (128, 128), (129, 129), (300, 1000), (200, 70)]
)
@pytest.mark.parametrize("granularity", ["", "qkv"])
def test_gpu(q_len: int, kv_len: int, dim: int, strict: bool, granularity: str) -> None:
    tensors = made((2, q_len, 4), (2, kv_len, 2), granularity, signs=True, dim=dim, seed=q_len)
    form = Form(strict, with_lse=True)
    on_gpu = tuple(t.cuda() for t in tensors)
    assert cuda_wgmma.unfit(on_gpu, form) == ""
    out = torch.full(on_gpu[0].shape, math.nan, device="cuda")
    lse = torch.full(on_gpu[0].shape[:3], math.nan, device="cuda")
    cuda_wgmma.run(on_gpu, True, 0.1, form, out, lse, 132)
    assert_right((out, lse), tensors, form)
    again = torch.full_like(out, math.nan)
    cuda_wgmma.run(on_gpu, True, 0.1, form, again, None, 132)
    assert torch.equal(out, again)


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
def test_gpu_packed(half: bool) -> None:
    ends = torch.cat([torch.zeros(1), torch.randint(0, 700, (20,)).cumsum(0)]).int()
    tensors = made((1, int(ends[-1]), 4), (1, int(ends[-1]), 2), half=half, dim=128)
    if half:
        tensors[2][0, int(ends[5]) + 3, 0, 7] = math.nan
    form = Form(False, with_lse=True, cu_seqlens_q=ends, cu_seqlens_k=ends)
    moved = form._replace(cu_seqlens_q=ends.cuda(), cu_seqlens_k=ends.cuda())
    out, lse = cuda.launch_form(*(t.cuda() for t in tensors), True, 0.1, moved)
    assert lse is not None
    assert_right((out, lse), tensors, form)


@pytest.mark.gpu
@pytest.mark.parametrize("granularity", ["", "qkv"])
@pytest.mark.parametrize("strict", [False, True])
def test_gpu_second_call_of_a_form(strict: bool, granularity: str) -> None:
    """By the remembered launches: tensors of other addresses, then those of the first again."""
    accuracy = "strict" if strict else "high"
    given = [made((2, 640, 4), (2, 640, 2), granularity, dim=128, seed=s) for s in (0, 1)]
    on_gpu: list[Any] = [tuple(t.cuda() for t in tensors) for tensors in given]
    for n in (0, 1, 0):
        options: Any = dict(accuracy=accuracy, return_lse=True, scale=0.1)
        got = int8_attention(*on_gpu[n], **options)
        assert_right(got, given[n], Form(strict))
    key = (accuracy, torch.float32, None, True, (True,) * 4)
    known = cuda_quick.quick(*on_gpu[1], True, 0.1, key)
    assert isinstance(known, tuple)
    assert_right(known, given[1], Form(strict))
