"""Every CUDA kernel that is shipped runs under the emulator: right values, no finding."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof.emulate.standin import Recorder, standing_in
from kernelproof.ops.gated_recurrence import cuda as gated_cuda
from kernelproof.ops.int8_attention import cuda as attention_cuda
from kernelproof.ops.int8_attention import int8_attention
from kernelproof.ops.mla_kv import cuda as mla_cuda
from kernelproof.ops.mla_kv import mla_kv
from kernelproof.pipeline import Options, judge

BITS = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def emulated(run: Any) -> tuple[Any, set[str]]:
    """The result and the names of the kernels; any finding is a failure."""
    recorder = Recorder()
    with standing_in(recorder):
        out = run()
    results = recorder.taken()
    assert [str(f) for r in results for f in r.findings] == []
    return out, {r.kernel.split("<")[0] for r in results}


def close(got: torch.Tensor, want: torch.Tensor, bound: float) -> None:
    want = want.double()
    error = float((got.double() - want).abs().max() / want.abs().max().clamp(min=1e-30))
    assert error <= bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "gates"),
    [
        ((2, 20, 2, 32, 32), "v"),
        ((1, 37, 1, 30, 20), "kvh"),
        ((1, 1, 2, 16, 8), "k"),
        ((1, 40, 1, 100, 9), "h"),
        ((1, 6, 1, 300, 5), "v"),
    ],
)
def test_gated_recurrence(dtype: torch.dtype, shape: tuple[int, ...], gates: str) -> None:
    torch.manual_seed(0)
    batch, steps, heads, rows, columns = shape
    q, k = (torch.randn(batch, steps, heads, rows).to(dtype) for _ in range(2))
    v = torch.randn(batch, steps, heads, columns).to(dtype)
    kinds = {"k": (rows,), "v": (columns,), "h": ()}
    given = [torch.rand(batch, steps, heads, *kinds[g]) if g in gates else None for g in "kvh"]
    first = torch.randn(batch, heads, rows, columns)
    (y, state), _ = emulated(
        lambda: gated_cuda.launch(q, k, v, *given, 0.5, first, with_state=True)
    )
    wide = [None if t is None else t.double() for t in (q, k, v, *given)]
    want, last = _recurrence(*wide, 0.5, first.double())
    close(y, want, BITS[dtype])
    close(state, last, 1e-5)


def _recurrence(
    q: Any, k: Any, v: Any, gate_k: Any, gate_v: Any, gate_head: Any, scale: float, state: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    steps = []
    for t in range(q.shape[1]):
        if gate_k is not None:
            state = state * gate_k[:, t, :, :, None]
        if gate_v is not None:
            state = state * gate_v[:, t, :, None, :]
        if gate_head is not None:
            state = state * gate_head[:, t, :, None, None]
        state = state + k[:, t, :, :, None] * v[:, t, :, None, :]
        steps.append(scale * (q[:, t, :, :, None] * state).sum(2))
    return torch.stack(steps, 1), state


def test_gated_recurrence_of_any_strides_and_with_turns() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(1, 2, 36, 16).transpose(1, 2) for _ in range(3))
    gate = torch.rand(1, 36, 2, 16)
    gate[:, 5] = 1e30  # its product leaves the range, so the segments take turns
    gate[:, 6] = 1e-30
    (y, _), _ = emulated(lambda: gated_cuda.launch(q, k, v, None, gate, None, 1.0))
    zero = torch.zeros(1, 2, 16, 16, dtype=torch.float64)
    want, _ = _recurrence(q.double(), k.double(), v.double(), None, gate.double(), None, 1.0, zero)
    close(y, want, 1e-4)


@pytest.mark.parametrize(
    ("sizes", "causal", "kernel"),
    [
        ((1, 17, 17, 2, 2, 64), True, "attend"),
        ((1, 20, 40, 2, 1, 32), False, "attend"),
        ((1, 16, 70, 1, 1, 96), True, "attend"),
        ((1, 16, 33, 1, 1, 128), True, "attend"),
        ((1, 16, 16, 1, 1, 192), True, "attend"),
        ((1, 16, 16, 1, 1, 256), True, "attend"),
        ((1, 20, 20, 1, 1, 50), True, "attend"),
        ((1, 5, 9, 2, 2, 300), True, "attend_rows"),
        ((2, 65, 130, 54, 54, 32), True, "attend_blocks"),
    ],
)
def test_int8_attention(sizes: tuple[int, ...], causal: bool, kernel: str) -> None:
    torch.manual_seed(0)
    batch, queries, keys, heads, kv_heads, dim = sizes
    q = torch.randint(-127, 128, (batch, queries, heads, dim), dtype=torch.int8)
    k, v = (
        torch.randint(-127, 128, (batch, keys, kv_heads, dim), dtype=torch.int8) for _ in range(2)
    )
    scales = [torch.rand(n) * 0.01 + 0.005 for n in (heads, kv_heads, kv_heads)]
    out, names = emulated(lambda: attention_cuda.launch(q, k, v, *scales, causal, dim**-0.5))
    assert names == {kernel}
    close(out, int8_attention(q, k, v, *scales, causal=causal, impl="reference"), 2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("sizes", "design"),
    [((20, 64, 40, 48), "fused"), ((20, 70, 40, 48), "product"), ((3, 1100, 20, 24), "product")],
)
def test_mla_kv(dtype: torch.dtype, sizes: tuple[int, ...], design: str) -> None:
    torch.manual_seed(0)
    _mla(dtype, sizes, design)


def test_mla_kv_in_registers_and_in_large_tiles() -> None:
    torch.manual_seed(0)
    assert _mla(torch.float32, (5, 128, 32, 64), "registers") == {"mla_kv_registers"}
    _mla(torch.float32, (7 * 64, 20, 1100, 68), "product")


def _mla(dtype: torch.dtype, sizes: tuple[int, ...], design: str) -> set[str]:
    tokens, model, rank, columns = sizes
    hidden = torch.randn(1, tokens, model).to(dtype)
    down = (torch.randn(model, rank) / model**0.5).to(dtype)
    up_k, up_v = ((torch.randn(rank, columns) / rank**0.5).to(dtype) for _ in range(2))
    operands = (hidden, down, up_k, up_v)
    out, names = emulated(lambda: mla_cuda.mla_kv_cuda(*operands, 4, design))
    want = mla_kv(*(t.double() for t in operands), kv_heads=4, impl="reference")
    close(out, want, BITS[dtype])
    return names


@pytest.mark.parametrize("problem", ["gated_recurrence", "int8_attention", "mla_kv"])
def test_the_founding_case_passes_as_emulated(problem: str) -> None:
    options = Options(device="cpu", seeds=1, seed=1, cases=("founding",), level="quick")
    record = judge(problem, "cuda", options=options, timed=True)
    assert record.status == "pass", record.verdict.message
    assert record.verdict.evidence == "emulated"
    assert record.timing is None
    outcomes = {check.name: check.outcome for check in record.verdict.checks}
    assert outcomes["races, bounds and initialisation (emulated)"] == "pass"
    assert outcomes["emulated launches"] == "pass"
