"""int8_attention with a few queries against a long cache: `attend_decode`."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_int8_forms import assert_right, emulated, relative
from test_int8_forms import poison as poison
from torch import Tensor

from kernelproof.ops.int8_attention import cuda, cuda_decode, cuda_general, problem_forms
from kernelproof.ops.int8_attention.contract import Form
from kernelproof.ops.int8_attention.reference import attend


def made(
    strict: bool = True, out_dtype: torch.dtype = torch.float32, **sizes: Any
) -> tuple[list[Tensor], Form]:
    torch.manual_seed(4)
    tensors = problem_forms.get_inputs(**sizes)
    kind = sizes.get("kind", "dense")
    form = Form(
        strict, out_dtype, sizes.get("block", ()), with_lse=True,
        kv_lens=tensors[6] if kind != "dense" else None,
        block_table=tensors[7] if kind == "paged" else None,
    )  # fmt: skip
    return tensors[:6], form


def chosen(tensors: list[Tensor], form: Form, multiprocessors: int = 132) -> str:
    return cuda_general.plan_of(tuple(tensors), form, multiprocessors).kernel.name


CASES: dict[str, dict[str, Any]] = {
    # One key head of a block and two, steps behind the end of a split, a sequence without keys.
    "lengths": {
        "kind": "lens", "seq": 1, "kv_seq": 90, "lens": (90, 0, 37), "heads": 8, "head_dim": 128,
        "scales": "head",
    },
    "two_heads": {
        "kind": "lens", "seq": 2, "kv_seq": 300, "lens": (300, 1, 37), "heads": 8, "head_dim": 64,
        "signed": True,
    },
    "pages_of_a_step": {
        "kind": "paged", "seq": 3, "lens": (127, 128, 129), "page": 16, "heads": 8,
        "head_dim": 64, "scales": "head", "strict": False, "out_dtype": torch.bfloat16,
    },
    "odd_pages": {
        "kind": "paged", "seq": 5, "lens": (61, 9), "page": 7, "block": (1, 4, 3), "heads": 8,
        "head_dim": 128,
    },
    "wide": {"batch": 1, "seq": 8, "kv_seq": 70, "heads": 2, "head_dim": 256, "scales": "head"},
    "fewer_keys_than_queries": {
        "batch": 1, "seq": 9, "kv_seq": 4, "heads": 2, "kv_heads": 1, "head_dim": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = CASES[name]
    tensors, form = made(**sizes)
    if name == "two_heads":  # on a GPU that few blocks fill, and three splits
        monkeypatch.setattr(cuda, "processors", lambda index: 3)
        monkeypatch.setattr(cuda_decode, "fewest_splits", lambda *_: 3)
        cuda_general.plan_for.cache_clear()
        assert chosen(tensors, form, 3).endswith("2>")
    assert chosen(tensors, form).startswith("attend_decode")
    got = emulated(lambda: cuda.launch_form(*tensors, True, sizes["head_dim"] ** -0.5, form))
    cuda_general.plan_for.cache_clear()
    assert_right(got, tensors, True, form)


def test_references_move() -> None:
    """Scores that rise along the cache by more than fp16 holds, and scales of values from 1e-30 to
    1e30, one of them infinite: what is seen of it is not finite, and nothing else is affected."""
    tensors, _ = made(batch=1, seq=1, kv_seq=160, heads=2, head_dim=64)
    q, k, v, q_scale, k_scale, v_scale = tensors
    q.fill_(1)
    k.copy_(torch.arange(160).sub(80).clamp(max=40).view(1, -1, 1, 1))
    q_scale.fill_(1.0)
    k_scale.fill_(0.1)
    v_scale.copy_(torch.logspace(-30, 30, 160).view(1, -1, 1))
    form = Form(with_lse=True)
    assert_right(
        emulated(lambda: cuda.launch_form(*tensors, True, 0.125, form)), tensors, True, form
    )
    v_scale[:, 100, 0] = math.inf
    out, lse = emulated(lambda: cuda.launch_form(*tensors, True, 0.125, form))
    truth, _ = attend(q, k, v, *(t.double() for t in tensors[3:]), True, 0.125, form)
    assert not out[:, :, 0].isfinite().any() and lse.isfinite().all()
    assert relative(out[:, :, 1], truth[:, :, 1]) <= 1e-6


def test_choice() -> None:
    def choice(**changes: Any) -> cuda_decode.Choice | None:
        given: dict[str, Any] = {
            "batch": 16, "rows": 4, "keys": 32_768, "kv_heads": 8, "dim": 128, "strict": True,
            "scaled": False, "paged": False, "multiprocessors": 132, **changes,
        }  # fmt: skip
        return cuda_decode.choose(**given)

    for heads in (1, 3, 6, 8, 32):
        for rows in (1, 8, 9, 64):
            for batch in (1, 7, 500):
                for dim in (64, 128, 256):
                    got = choice(kv_heads=heads, rows=rows, batch=batch, dim=dim)
                    assert got is not None and got.shared <= 227 * 1024
                    of_block = int(got.name[-2])
                    assert heads % of_block == 0
                    assert got.grid == got.tiles * heads // of_block * got.splits
    few = choice(keys=20)
    assert few is not None and few.splits == 1
    assert choice(rows=65) is None and choice(dim=96) is None


@pytest.mark.parametrize(
    "change", [{"half": True}, {"gap": 4}, {"head_dim": 96}, {"kind": "packed"}, {"seq": 40}]
)
def test_others_do_the_rest(change: dict[str, Any]) -> None:
    sizes = {"batch": 1, "seq": 1, "kv_seq": 40, "head_dim": 64, **change}
    if change.get("kind") == "packed":
        sizes |= {"queries": (1, 1), "keys": (20, 20)}
        tensors = problem_forms.get_inputs(**sizes)
        form = Form(cu_seqlens_q=tensors[6], cu_seqlens_k=tensors[7])
    else:
        tensors, form = made(**sizes)
    assert chosen(tensors[:6], form).startswith("attend_general")


@pytest.mark.parametrize(
    "name",
    [
        "attend_decode<128, 1, true, false, false, 8>",
        "attend_decode<64, 4, false, true, true, 2>",
        "attend_decode<256, 2, true, true, true, 1>",
    ],
)
def test_compiles(name: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    for arch in ("sm_80", "sm_90a"):
        assert cuda_general.kernel(name).compile(arch)


# ---- on a GPU ----


ON_GPU: list[dict[str, Any]] = [
    {"batch": 16, "seq": 1, "kv_seq": 3001, "heads": 32, "kv_heads": 8, "head_dim": 128,
     "scales": "head"},
    {"batch": 5, "seq": 1, "kv_seq": 2000, "heads": 8, "kv_heads": 8, "head_dim": 64},
    {"batch": 1, "seq": 8, "kv_seq": 9000, "heads": 8, "kv_heads": 1, "head_dim": 128,
     "signed": True, "causal": False},
    {"batch": 40, "seq": 4, "kv_seq": 1100, "heads": 16, "kv_heads": 4, "head_dim": 256},
    {"kind": "lens", "seq": 3, "kv_seq": 4100, "lens": (4100, 0, 1, 2049), "heads": 28,
     "kv_heads": 4, "head_dim": 128, "signed": True},
    {"kind": "paged", "seq": 2, "lens": (5000, 127, 128, 129, 0), "page": 64, "heads": 32,
     "kv_heads": 8, "head_dim": 128},
    {"kind": "paged", "seq": 1, "lens": (2000, 17), "page": 1, "heads": 4, "kv_heads": 4,
     "head_dim": 64, "scales": "head"},
    {"kind": "paged", "seq": 6, "lens": (300, 77), "page": 24, "block": (2, 5, 24), "heads": 8,
     "kv_heads": 2, "head_dim": 128},
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("number", range(len(ON_GPU)))
def test_gpu(number: int, strict: bool) -> None:
    sizes = ON_GPU[number]
    tensors, form = made(strict, torch.float32 if strict else torch.bfloat16, **sizes)
    causal, scale = sizes.get("causal", True), sizes["head_dim"] ** -0.5
    moved = form._replace(
        kv_lens=None if form.kv_lens is None else form.kv_lens.cuda(),
        block_table=None if form.block_table is None else form.block_table.cuda(),
    )
    on_gpu = [t.cuda() for t in tensors]
    assert chosen(on_gpu, moved).startswith("attend_decode")
    out, lse = cuda.launch_form(*on_gpu, causal, scale, moved)
    again, _ = cuda.launch_form(*on_gpu, causal, scale, moved)
    assert lse is not None and torch.equal(out, again)
    assert_right((out.cpu(), lse.cpu()), tensors, causal, form)
