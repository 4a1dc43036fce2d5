"""Every `__global__` function of the shipped sources runs under the emulator: a table of one small
call each, which cannot miss one. Forms and sizes are varied by the tests of each operator."""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

import kernelproof
from kernelproof.cuda import Kernel
from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.floors import gpu as floors
from kernelproof.ops._template import cuda as template
from kernelproof.ops.gated_recurrence import chunk_choice, cuda_backward
from kernelproof.ops.gated_recurrence import chunked as gated_chunks
from kernelproof.ops.gated_recurrence import cuda as gated
from kernelproof.ops.gated_recurrence import reference as gated_reference
from kernelproof.ops.gated_recurrence.gradients import from_sums
from kernelproof.ops.int8_attention import cuda as attention
from kernelproof.ops.int8_attention import cuda_wgmma
from kernelproof.ops.int8_attention.contract import PLAIN, Form
from kernelproof.ops.int8_attention.reference import attend
from kernelproof.ops.mla_kv import cuda as mla
from kernelproof.ops.mla_kv import cuda_backward as mla_backward
from kernelproof.ops.mla_kv import cuda_hopper, cuda_narrow, cuda_plan
from kernelproof.ops.mla_kv.cuda_steps import Device

SOURCES = Path(kernelproof.__file__).parent
# Whole words before the name: the attributes, and a type. A macro gives its argument as the name.
GLOBAL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\([^\n]*\)\s+)?(\w+)\s*\(")
MACRO = re.compile(r"^PAIRS\((\w+)\)", re.MULTILINE)

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
# Largest error over the largest value: of sums in float32 (float64), and with the roundings of
# latents and results to 16 bits.
BOUND = {F64: 1e-13, F32: 3e-6, F16: 2e-3, BF16: 1.2e-2}


def shipped() -> list[str]:
    """Names of all kernels in the package's sources."""
    names = []
    for file in sorted(SOURCES.rglob("*.cu")):
        text = file.read_text()
        found = [name for name in GLOBAL.findall(text) if name != "name"] + MACRO.findall(text)
        count = text.count("__global__") - ("PAIRS(name)" in text)
        assert len(found) == count + len(MACRO.findall(text)), f"{file.name}: {found}"
        names += found
    return names


def close(got: Tensor, want: Tensor, bound: float) -> None:
    error = (got.double() - want.double()).abs().max() / want.double().abs().max().clamp(min=1e-30)
    assert got.shape == want.shape and error <= bound


# -- one call each, which checks its values --------------------------------------------------------


def gated_forward(form: str) -> None:
    q, k = (torch.randn(1, 9, 2, 8) for _ in range(2))
    v, gate = torch.randn(1, 9, 2, 4), torch.rand(1, 9, 2, 8)
    bounds = torch.tensor([0, 4, 9], dtype=torch.int32) if form == "packed" else None
    if form == "strided":
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    state = torch.randn(1 if bounds is None else 2, 2, 8, 4)
    got = gated.launch(q, k, v, gate, None, None, 0.5, state, True, cu_seqlens=bounds)
    wide = [t.double() for t in (q, k, v, gate)]
    want = gated_reference.run(*wide, None, None, False, 0.5, state.double(), bounds)
    for mine, exact in zip(got, want, strict=True):
        close(mine, exact, BOUND[F32])


def gated_backward(rows: int, steps: int) -> None:
    """The sums of which the gradients of q, k and v are made; those of gates: test_gated_forms."""
    q, k, v = (torch.randn(1, steps, 1, n) for n in (rows, rows, 4))
    state = torch.zeros(1, 1, rows, 4)
    of_y, of_state = torch.randn(1, steps, 1, 4), torch.randn(1, 1, rows, 4)
    sums = cuda_backward.launch_backward(of_y, of_state, q, k, v, None, None, None, 0.5, state)
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    outputs = gated_reference.run(*leaves, None, None, None, False, 0.5, state.double())
    want = torch.autograd.grad(outputs, leaves, [of_y.double(), of_state.double()])
    for mine, exact in zip(from_sums(sums, q, v, None, None, None, False)[:3], want, strict=True):
        assert mine is not None
        close(mine, exact, BOUND[F32])


def gated_backward_in_one_block() -> None:
    """Which takes two tiles in turn, each in two chunks."""
    one = types.SimpleNamespace(multi_processor_count=1)
    with (
        mock.patch.object(torch.cuda, "get_device_properties", lambda device: one),
        mock.patch.object(cuda_backward, "_BLOCKS_PER_PROCESSOR", 1),
    ):
        gated_backward(36, 72)


def gated_gradients_in_chunks(rows: int, gate_of: float = 1.0) -> None:
    """70 steps; a gate of ``gate_of`` is for ``gradients_of_some`` where it is large."""
    q, k = (torch.randn(1, 70, 1, rows).bfloat16() for _ in range(2))
    v, of_y = (torch.randn(1, 70, 1, 64).bfloat16() for _ in range(2))
    gate = torch.rand(1, 70, 1, rows)
    gate[:, 40, :, 3] = gate_of
    sums = cuda_backward.launch_backward(of_y, None, q, k, v, gate)
    leaves = [t.double().requires_grad_() for t in (q, k, v, gate)]
    y, _ = gated_reference.run(*leaves)
    want = torch.autograd.grad(y, leaves, of_y.double())
    for mine, exact in zip(from_sums(sums, q, v, gate, None, None, False)[:4], want, strict=True):
        assert mine is not None
        close(mine, exact, BOUND[BF16])


def gated_step() -> None:
    q, k, gate = (torch.randn(1, 1, 2, 8) for _ in range(3))
    v, state = torch.randn(1, 1, 2, 4), torch.randn(1, 2, 8, 4)
    wide = [t.double() for t in (q, k, v, gate)]
    want = gated_reference.run(*wide, None, None, False, 0.5, state.double())
    y = gated.launch_step(q, k, v, gate, None, None, 0.5, state)
    close(y, want[0], BOUND[F32])
    close(state, want[1], BOUND[F32])


def gated_in_chunks(
    gates: str, key_dim: int, steps: int = 40, lead: int = 48, dtype: torch.dtype = BF16
) -> None:
    """On tensor cores; ``lead``: steps of the first segment."""
    q, k = (torch.randn(1, steps, 1, key_dim).to(dtype) for _ in range(2))
    v = torch.randn(1, steps, 1, 64).to(dtype)
    widths = {"k": (key_dim,), "v": (64,), "h": ()}
    given = [torch.rand(1, steps, 1, *n) if x in gates else None for x, n in widths.items()]
    wanted, _ = gated_reference.run(*(None if t is None else t.double() for t in (q, k, v, *given)))
    gated_chunks._plan.cache_clear()
    with (
        mock.patch.object(gated_chunks, "_FEWEST_STEPS", 1),
        mock.patch.object(chunk_choice, "divided", lambda *_: (1 + (lead < steps), lead, 64)),
    ):
        close(gated.launch(q, k, v, *given)[0], wanted, BOUND[dtype])
    gated_chunks._plan.cache_clear()


def attention_of(dim: int, form: Form = PLAIN, tokens: int = 40) -> None:
    q = torch.randint(-127, 128, (1, 3, 2, dim), dtype=torch.int8)
    k, v = (torch.randint(-127, 128, (1, tokens, 2, dim), dtype=torch.int8) for _ in range(2))
    axes = (2,) if form == PLAIN else (1, tokens, 2)
    scales = [torch.rand(*axes) * 0.01 for _ in range(3)]
    if form != PLAIN:
        scales[0] = scales[0][:, :3]
        form = form._replace(kv_lens=torch.tensor([tokens], dtype=torch.int32))
    got, _ = attention.launch_form(q, k, v, *scales, True, 0.1, form)
    want, _ = attend(q, k, v, *(s.double() for s in scales), True, 0.1, form)
    close(got, want, BOUND[F32])


def attention_in_blocks() -> None:
    """On a GPU that one tile fills."""
    q, k, v = (torch.randint(-127, 128, (1, n, 1, 16), dtype=torch.int8) for n in (65, 130, 130))
    scales = [torch.rand(1) * 0.01 for _ in range(3)]
    with mock.patch.object(attention, "processors", lambda index: 1):
        got = attention.launch(q, k, v, *scales, True, 0.1)
    want, _ = attend(q, k, v, *(s.double() for s in scales), True, 0.1)
    close(got, want, BOUND[F32])


def attention_prefill(per_token: bool = False, inside: bool = True) -> None:
    """On a small GPU of compute capability 9.0. ``inside``: values become fp16 in shared memory, as
    with few queries; else in a launch before."""
    q, k, v = (torch.randint(-127, 128, (1, n, 2, 64), dtype=torch.int8) for n in (65, 130, 130))
    scales = [torch.rand((1, n, 2) if per_token else (2,)) * 0.01 for n in (65, 130, 130)]
    with (
        mock.patch.object(attention, "processors", lambda index: 2),
        mock.patch.object(cuda_wgmma, "slower", lambda *given: ""),
        mock.patch.object(cuda_wgmma, "_inside", lambda *given: inside),
    ):
        got, _ = attention.launch_form(q, k, v, *scales, True, 0.1, Form(with_lse=True))
    want, _ = attend(q, k, v, *(s.double() for s in scales), True, 0.1)
    close(got, want, BOUND[F32])


def mla_of(
    design: str, sizes: tuple[int, int, int, int], dtype: torch.dtype = F32, *,
    norm: bool = False, rope: int = 0, linear: bool = False, multiprocessors: int = 0,
) -> None:  # fmt: skip
    """Sizes: tokens, M, R and columns of one head. ``linear``: weights as those of nn.Linear.
    ``multiprocessors``: of a small GPU of compute capability 9.0 (the blocks of a cooperative
    launch are as many), else of the emulated one of 8.0."""
    tokens, model, rank, columns = sizes
    hidden = torch.randn(tokens, model).to(dtype)
    weights = [
        (torch.randn(a, b) / a**0.5).to(dtype)
        for a, b in ((model, rank), (rank, columns), (rank, columns))
    ]
    if linear:
        weights = [w.t().contiguous().t() for w in weights]
    weight = torch.rand(rank).to(dtype) if norm else None
    k_pe = torch.randn(tokens, 1, rope).to(dtype) if rope else None
    with small_gpu(multiprocessors):
        out = mla.project_cuda(
            hidden, *weights, kv_heads=1, norm_weight=weight, norm_eps=1e-6, k_pe=k_pe,
            layout="split" if rope else "stacked", design=design,
        )  # fmt: skip
    keys, values = out if isinstance(out, tuple) else out.unbind(1)
    down, up_k, up_v = (w.double() for w in weights)
    latent = hidden.double() @ down
    if weight is not None:
        latent = latent * (latent.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    want = latent @ up_k
    if k_pe is not None:
        want = torch.cat((want, k_pe[:, 0].double()), -1)
    close(keys[:, 0], want, BOUND[dtype])
    close(values[:, 0], latent @ up_v, BOUND[dtype])


@contextlib.contextmanager
def small_gpu(multiprocessors: int, **of_prefill: Any) -> Iterator[None]:
    """mla_kv chooses for such a GPU of compute capability 9.0; 0: for that of the recorder."""
    facts = Device(multiprocessors, (9, 0)) if multiprocessors else Device(108, (8, 0))
    chosen = functools.partial(cuda_hopper.prefill, **of_prefill)
    caches = (mla._prepared, cuda_plan.plan)
    for cache in caches:
        cache.cache_clear()
    with (
        mock.patch.object(mla, "device_facts", lambda index: facts),
        mock.patch.object(cuda_plan, "prefill", chosen),
    ):
        yield
    for cache in caches:
        cache.cache_clear()


def narrow_in_pairs() -> None:
    """The same, with more units than pairs, the last of which has one block's tokens only."""
    pairs = functools.partial(cuda_narrow.narrow, cluster=2)
    with mock.patch.object(cuda_plan, "narrow", pairs):
        mla_of("narrow", (130, 456, 72, 72), F16, norm=True, rope=8, multiprocessors=4)


def wgmma_in_pairs() -> None:
    """Clusters of two blocks, an instance that benchmarks alone ask for."""
    with small_gpu(2, cluster=2):
        hidden, down = torch.randn(130, 64).half(), torch.randn(64, 72).half() / 8
        ups = [torch.randn(72, 264).half() / 8 for _ in range(2)]
        out = mla.project_cuda(hidden, down, *ups, kv_heads=1, design="wgmma")
    for part, up in enumerate(ups):
        close(out[:, part, 0], hidden.double() @ down.double() @ up.double(), BOUND[F16])


def mla_gradients(tokens: int, model: int, rank: int, columns: int, multiprocessors: int) -> None:
    """Gradients that are halves of one tensor, as of a stacked output."""
    hidden, grad = torch.randn(tokens, model), torch.randn(tokens, 2, 1, columns)
    down, up_k, up_v = (torch.randn(a, b) for a, b in ((model, rank), *[(rank, columns)] * 2))
    with small_gpu(multiprocessors):
        found = mla_backward.launch(grad[:, 0], grad[:, 1], hidden, down, up_k, up_v)
    x, gk, gv, wd, wk, wv = (
        t.double() for t in (hidden, grad[:, 0, 0], grad[:, 1, 0], down, up_k, up_v)
    )
    by_latent, latent = gk @ wk.t() + gv @ wv.t(), x @ wd
    want = (by_latent @ wd.t(), x.t() @ by_latent, latent.t() @ gk, latent.t() @ gv)
    for mine, exact in zip(found, want, strict=True):
        close(mine, exact, BOUND[F32])


def floor(name: str, *before: Any, after: Callable[[], bool] = lambda: True) -> None:
    Kernel(floors._SOURCE, name)(*before, grid=2, block=64)
    assert after()


def floor_streams(name: str) -> None:
    x, y = torch.arange(2400.0), torch.empty(2400)
    if name == "stream_read":  # what it adds up is kept by nobody
        out = torch.zeros(1)
        floor(name, x, 600, 2, out, after=lambda: out.item() == 0)
    elif name == "stream_write":
        floor(name, y, 600, 2, 3.0, after=lambda: bool((y == 4.0).all()))
    else:
        floor(name, x, y, 600, 1, after=lambda: torch.equal(x, y))


def template_op() -> None:
    x, y = torch.randn(300), 50 * torch.randn(300)
    close(template.launch(x, y), x.double() * torch.sigmoid(y.double()), BOUND[F32])


def chain(name: str, dtype: torch.dtype) -> None:
    out = torch.zeros(4, dtype=dtype)
    floor(name, out, 2, after=lambda: not out.any())


CALLS: dict[str, list[Callable[[], None]]] = {
    "contiguous": [lambda: gated_forward("contiguous")],
    "strided": [lambda: gated_forward("strided")],
    "packed": [lambda: gated_forward("packed")],
    "gradients": [lambda: gated_backward(8, 9), gated_backward_in_one_block],
    "ends": [lambda: gated_gradients_in_chunks(64)],
    "scan": [lambda: gated_gradients_in_chunks(64)],
    "gradients_in_chunks": [lambda: gated_gradients_in_chunks(128)],
    "gradients_of_some": [lambda: gated_gradients_in_chunks(64, 9.0)],
    "step": [gated_step],
    "chunked": [lambda: gated_in_chunks("k", 64, lead=16), lambda: gated_in_chunks("v", 64)],
    "gate_keys": [lambda: gated_in_chunks("k", 256, dtype=F16)],
    "wide": [lambda: gated_in_chunks("h", 64, 100, 64)],
    "wide_keys": [lambda: gated_in_chunks("k", 256, 70, 128)],
    "attend": [lambda: attention_of(32)],
    "attend_blocks": [attention_in_blocks],
    "attend_general": [lambda: attention_of(32, Form(kv_lens=torch.ones(1)))],
    "attend_decode": [lambda: attention_of(64, Form(kv_lens=torch.ones(1)))],
    "attend_rows": [lambda: attention_of(260, tokens=9)],
    "combine_parts": [lambda: attention_of(32, Form(kv_lens=torch.ones(1)), tokens=2100)],
    "attend_wgmma": [attention_prefill],
    "widen_values": [lambda: attention_prefill(inside=False)],
    "prepare_wgmma": [lambda: attention_prefill(per_token=True, inside=False)],
    "mla_kv_registers": [lambda: mla_of("registers", (5, 128, 48, 24))],
    "mla_kv_fused": [lambda: mla_of("fused", (5, 70, 48, 20), norm=True, rope=6)],
    "mla_kv_product": [lambda: mla_of("product", (5, 70, 48, 20), F64)],
    "mla_kv_mma": [
        lambda: mla_of("mma", (5, 70, 48, 24)),
        lambda: mla_of("mma", (5, 70, 48, 24), BF16, rope=8),
    ],
    "mla_kv_latent": [lambda: mla_of("mma", (5, 700, 48, 24), BF16, norm=True)],
    "mla_kv_block": [lambda: mla_of("block", (9, 70, 72, 24), BF16, norm=True, rope=8)],
    # One token and several, with and without the norm, each way that weights lie; warps that share
    # the rank and eight side by side, with more copies than slots.
    "mla_kv_decode": [
        lambda: mla_of("decode", (1, 136, 64, 64), BF16, multiprocessors=2),
        lambda: mla_of("decode", (1, 128, 64, 520), F16, norm=True, rope=8, multiprocessors=1),
        lambda: mla_of("decode", (3, 72, 64, 1544), BF16, norm=True, multiprocessors=2),
        lambda: mla_of("decode", (9, 136, 128, 72), F16, rope=8, multiprocessors=4),
        lambda: mla_of("decode", (3, 72, 64, 1544), F16, linear=True, multiprocessors=2),
        lambda: mla_of("decode", (1, 136, 64, 64), BF16, linear=True, multiprocessors=2),
    ],
    # A last block with fewer tokens; rows of w_up that no thread has; more tokens than one batch.
    "mla_kv_token_gradients": [
        lambda: mla_gradients(5, 24, 48, 16, 2),
        lambda: mla_gradients(7, 8, 52, 48, 7),
    ],
    "mla_kv_weight_gradients": [
        lambda: mla_gradients(5, 8, 20, 16, 2),
        lambda: mla_gradients(130, 4, 96, 16, 17),
    ],
    # The library before it, and both products with the norm in them; more steps than stages.
    "mla_kv_wgmma": [
        lambda: mla_of("wgmma", (5, 72, 72, 72), F16, rope=8, multiprocessors=2),
        lambda: mla_of("wgmma", (5, 72, 328, 64), BF16, linear=True, multiprocessors=2),
        lambda: mla_of("wgmma", (128, 264, 256, 72), BF16, norm=True, multiprocessors=1),
        lambda: mla_of("wgmma", (250, 72, 512, 64), F16, norm=True, multiprocessors=2),
        wgmma_in_pairs,
    ],
    # Elements one by one, and 16 bytes at a time; two clusters.
    "mla_kv_cluster": [
        lambda: mla_of("cluster", (20, 77, 41, 27), BF16, norm=True, rope=3, multiprocessors=16),
        lambda: mla_of("cluster", (18, 136, 72, 40), linear=True, multiprocessors=16),
    ],
    # One warpgroup and two, more steps than stages, and several tiles for each block.
    "mla_kv_pair_down": [
        lambda: mla_of("pair", (50, 520, 72, 64), BF16, norm=True, multiprocessors=16),
        lambda: mla_of("pair", (130, 1160, 136, 72), F16, linear=True, multiprocessors=8),
    ],
    "mla_kv_pair_up": [
        lambda: mla_of("pair", (50, 72, 72, 200), BF16, norm=True, rope=8, multiprocessors=2),
        lambda: mla_of("pair", (130, 72, 136, 264), F16, linear=True, multiprocessors=4),
    ],
    # Several items for each block, whose slots are used again.
    "mla_kv_wide": [
        lambda: mla_of("wide", (70, 72, 136, 200), BF16, multiprocessors=2),
        lambda: mla_of("wide", (130, 72, 264, 264), F16, linear=True, multiprocessors=4),
    ],
    # Groups of warps that share the terms, and none; the norm.
    "mla_kv_split_down": [
        lambda: mla_of("split", (9, 136, 40, 24), norm=True, rope=8, multiprocessors=32),
        lambda: mla_of("split", (33, 77, 41, 27), BF16, multiprocessors=8),
    ],
    "mla_kv_split_up": [
        lambda: mla_of("split", (9, 136, 40, 24), BF16, norm=True, multiprocessors=32),
        lambda: mla_of("split", (33, 77, 41, 27), linear=True, multiprocessors=8),
    ],
    # Blocks of 64 tokens and of 128, each with more than one unit, and more steps than stages.
    "mla_kv_narrow": [
        lambda: mla_of("narrow", (5, 456, 72, 72), F16, norm=True, rope=8, multiprocessors=4),
        lambda: mla_of("narrow", (260, 72, 8, 136), BF16, linear=True, multiprocessors=2),
        narrow_in_pairs,
    ],
    # A rank that leaves eight columns to the last product; warps with several chunks of columns.
    "mla_kv_thin": [
        lambda: mla_of("thin", (18, 136, 40, 24), BF16, norm=True, rope=8, multiprocessors=2),
        lambda: mla_of("thin", (5, 64, 8, 1032), F16, multiprocessors=2),
    ],
    "mla_kv_small": [
        lambda: mla_of("small", (5, 61, 19, 11), norm=True, rope=3),
        lambda: mla_of("small", (3, 133, 37, 21), F16, linear=True),
    ],
    # A second tile for each block; tokens that are no power of two.
    "mla_kv_few": [
        lambda: mla_of("few", (1, 136, 64, 96), multiprocessors=2),
        lambda: mla_of("few", (3, 72, 128, 44), norm=True, rope=4, multiprocessors=4),
    ],
    # More tiles than blocks, split sums, and each way that weights lie.
    "mla_kv_parts": [
        lambda: mla_of("parts", (130, 72, 72, 136), rope=4, multiprocessors=2),
        lambda: mla_of("parts", (5, 264, 40, 24), norm=True, linear=True, multiprocessors=2),
    ],
    "template_op_kernel": [template_op],
    "empty": [lambda: floor("empty", torch.zeros(1))],
    "stream_read": [lambda: floor_streams("stream_read")],
    "stream_write": [lambda: floor_streams("stream_write")],
    "stream_copy": [lambda: floor_streams("stream_copy")],
    "fma_fp32": [lambda: chain("fma_fp32", F32)],
    "fma_fp64": [lambda: chain("fma_fp64", F64)],
    "fma_fp16": [lambda: chain("fma_fp16", torch.int32)],
    "fma_bf16": [lambda: chain("fma_bf16", torch.int32)],
}


HOPPER = (
    "mla_kv_cluster", "mla_kv_decode", "mla_kv_few", "mla_kv_narrow", "mla_kv_pair_down",
    "mla_kv_pair_up", "mla_kv_parts", "mla_kv_split_down", "mla_kv_split_up", "mla_kv_thin",
    "mla_kv_wgmma", "mla_kv_wide",
    "chunked", "gate_keys", "wide", "wide_keys",
    "ends", "scan", "gradients_in_chunks", "gradients_of_some",
    "attend_wgmma", "widen_values", "prepare_wgmma",
)  # fmt: skip


def test_the_table_has_every_shipped_kernel() -> None:
    assert sorted(shipped()) == sorted(CALLS)


def test_mutations_reach_every_source_with_a_barrier(
    monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    monkeypatch.syspath_prepend(root / "benchmarks")
    import emulate_mutations

    names = {f"{file.parent.name}/{file.name}" for file in emulate_mutations.sources()}
    assert names == set(emulate_mutations.WORK)


@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, calls in CALLS.items() for i in range(len(calls))]
)
def test_right_and_without_findings(name: str, number: int) -> None:
    torch.manual_seed(0)
    recorder = Recorder(hopper=name in HOPPER)
    with standing_in(recorder):
        CALLS[name][number]()
    results = recorder.taken()
    assert [str(f) for r in results for f in r.findings] == []
    assert name in {r.kernel.split("<")[0] for r in results}
