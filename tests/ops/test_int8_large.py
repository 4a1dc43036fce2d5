"""int8_attention where offsets pass 2^31, and what its machine code consists of."""

from __future__ import annotations

import math

import pytest
import torch
from test_int8_forms import assert_right, relative
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.inspect import sass
from kernelproof.ops.int8_attention import cuda, cuda_general, int8_attention, problem_forms
from kernelproof.ops.int8_attention.contract import PLAIN, Form

FAR = 2**31


def far_apart(x: Tensor, device: str) -> Tensor:
    """``x`` (2, S, H, D) with 2^31 elements from one batch element to the next. Of the memory
    between them nothing is touched."""
    _, tokens, heads, dim = x.shape
    memory = torch.empty(FAR + tokens * heads * dim, dtype=x.dtype, device=device)
    view = memory.as_strided(x.shape, (FAR, heads * dim, dim, 1))
    return view.copy_(x)


def check_far(device: str, queries: int, dim: int, heads: int, form: Form) -> None:
    torch.manual_seed(0)
    tensors = problem_forms.get_inputs(
        batch=2, seq=queries, kv_seq=1100, heads=heads, head_dim=dim, scales="head"
    )
    moved = [far_apart(t, device) for t in tensors[:3]] + [t.to(device) for t in tensors[3:]]
    accuracy = "strict" if form.strict else "high"
    out, lse = int8_attention(*moved, accuracy=accuracy, return_lse=True)
    assert_right((out.cpu(), lse.cpu()), tensors, True, form)


def test_cpu_far() -> None:
    check_far("cpu", 2, 16, 2, PLAIN)


@pytest.mark.gpu
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("queries", "dim", "heads", "kernel"),
    [
        (1, 64, 4, "attend_decode"), (1, 32, 4, "attend_general"), (700, 64, 32, ""),
        (1, 300, 2, "attend_rows"),
    ],
)  # fmt: skip
def test_gpu_far(queries: int, dim: int, heads: int, kernel: str, strict: bool) -> None:
    form = Form(strict, with_lse=True)
    if kernel:
        shapes = (2, queries, heads, dim), (2, 1100, 2, dim)
        strides = [(FAR, s[2] * dim, dim, 1) for s in (*shapes, shapes[1])]
        plan = cuda_general.plan_for(*shapes, *strides, 0, 0, False, strict, 0, 0, 132, False)
        assert plan.kernel.name.startswith(kernel)
    check_far("cuda", queries, dim, heads, form)


@pytest.mark.gpu
def test_gpu_large_output() -> None:
    """More than 2^31 elements of queries and outputs, against a few keys."""
    torch.manual_seed(0)
    tokens, heads, dim = 131_080, 128, 128
    q = torch.randint(-127, 128, (1, tokens, heads, dim), dtype=torch.int8, device="cuda")
    k, v = (
        torch.randint(-127, 128, (1, 5, heads, dim), dtype=torch.int8, device="cuda")
        for _ in range(2)
    )
    scales = [torch.rand(heads, device="cuda") * 0.02 + 0.005 for _ in range(3)]
    assert q.numel() > FAR
    out = cuda.launch(q, k, v, *scales, False, dim**-0.5)
    for rows in (slice(0, 3), slice(tokens - 3, tokens)):
        wide = [
            t.double() * s.double().unsqueeze(-1)
            for t, s in zip((q[:, rows], k, v), scales, strict=True)
        ]
        scores = torch.einsum("bthd,bshd->bhts", wide[0], wide[1]) / math.sqrt(dim)
        truth = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), wide[2])
        assert relative(out[:, rows], truth) <= 1e-6


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (cuda, "attend<32, 5, true, true, false, true>"),
        (cuda, "attend_blocks<64, true, true, false>"),
        (cuda_general, "attend_general<32, false, true, true, false>"),
        (cuda_general, "attend_decode<64, 1, true, false, false, 1>"),
    ],
)
def test_tensor_cores_do_both_products(of: object, name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    cubin = of.kernel(name).compile("sm_90a")  # type: ignore[attr-defined]
    try:
        (mix,) = sass.mixes(sass.disassemble(cubin)).values()
    except UnsupportedError as missing:
        pytest.skip(str(missing))
    counts = mix.counts
    assert counts.get("IMMA", 0) > 0 and counts.get("HMMA", 0) > 0
