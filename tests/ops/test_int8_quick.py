"""Calls of int8_attention whose form has been seen: the launches that are remembered, emulated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from remembered_launches import Bound, remembered

from kernelproof.ops.int8_attention import cuda_quick, problem_forms
from kernelproof.ops.int8_attention.contract import PLAIN, Form
from kernelproof.ops.int8_attention.reference import attend
from kernelproof.tensor_map import TensorMap

BOUNDS = {True: 1e-6, False: 3e-4}


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[list[Bound]]:
    """What is remembered while emulated launches count as real ones. By a parameter: on Hopper."""
    from kernelproof.emulate.standin import Recorder, standing_in

    found = remembered(monkeypatch, cuda_quick)
    monkeypatch.setattr(TensorMap, "encoder", lambda map: int)
    recorder = Recorder(hopper=getattr(request, "param", False))
    with standing_in(recorder):
        yield found
    assert [str(f) for r in recorder.taken() for f in r.findings] == []


@pytest.mark.parametrize(
    ("sizes", "form", "kernel", "launches"),
    [
        (dict(scales="head"), PLAIN, "attend<", 1),
        (dict(scales="head"), Form(False), "attend<", 1),
        (
            dict(batch=1, seq=1, kv_seq=1, heads=1, kv_heads=1, head_dim=1, scales="head"), PLAIN,
            "attend<", 1,
        ),
        (dict(), PLAIN, "attend_general", 1),
        (dict(scales="head"), Form(False, with_lse=True), "attend_general", 1),
        (
            dict(kind="lens", seq=2, kv_seq=600, lens=(600, 90), head_dim=64),
            Form(out_dtype=torch.bfloat16, with_lse=True), "attend_decode", 2,
        ),
        (
            dict(kind="paged", seq=1, lens=(500, 70), page=16, scales="head", head_dim=64),
            Form(), "attend_decode", 2,
        ),
        (
            dict(kind="packed", queries=(9, 0, 17), keys=(9, 5, 33), half=True),
            Form(with_lse=True), "attend_general", 1,
        ),
    ],
)  # fmt: skip
def test_the_second_call_of_a_form(
    bound: list[Bound], sizes: dict[str, Any], form: Form, kernel: str, launches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With other tensors: right, and by the remembered launches."""
    from kernelproof.ops.int8_attention import cuda

    monkeypatch.setattr(cuda, "processors", lambda index: 8)
    assert_second_call(bound, sizes, form, kernel, launches)


@pytest.mark.parametrize("bound", [True], indirect=True)
@pytest.mark.parametrize(
    ("sizes", "form", "launches"),
    [
        (dict(scales="head"), PLAIN, 2),
        (dict(scales="head"), Form(out_dtype=torch.bfloat16, with_lse=True), 2),
        (dict(kind="lens", lens=(65, 20)), Form(False, with_lse=True), 3),
        (
            dict(kind="packed", queries=(3, 70), keys=(9, 66), scales="head", half=True),
            Form(False), 3,
        ),
    ],
)  # fmt: skip
def test_the_second_call_of_attend_wgmma(
    bound: list[Bound], sizes: dict[str, Any], form: Form, launches: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Values in scratch memory, and tensor maps of it and of the inputs, are those of the call."""
    from kernelproof.ops.int8_attention import cuda, cuda_wgmma

    monkeypatch.setattr(cuda, "processors", lambda index: 2)
    monkeypatch.setattr(cuda_wgmma, "slower", lambda *given: "")
    sizes = dict(seq=65, kv_seq=66, heads=2, kv_heads=1, head_dim=64) | sizes
    assert_second_call(bound, sizes, form, "attend_wgmma", launches)


@pytest.mark.parametrize("bound", [True], indirect=True)
def test_a_tensor_given_twice_is_not_taken_for_one(
    bound: list[Bound], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelproof.ops.int8_attention import cuda, cuda_wgmma

    monkeypatch.setattr(cuda, "processors", lambda index: 2)
    monkeypatch.setattr(cuda_wgmma, "slower", lambda *given: "")
    sizes = dict(seq=65, kv_seq=65, heads=1, kv_heads=1, head_dim=64, batch=1, scales="head")
    assert_second_call(bound, sizes, PLAIN, "attend_wgmma", 2, twice=True)


def assert_second_call(
    bound: list[Bound], sizes: dict[str, Any], form: Form, kernel: str, launches: int,
    twice: bool = False,
) -> None:  # fmt: skip
    """``twice``: the first call gets its queries as keys and values, too."""
    from kernelproof.ops.int8_attention import cuda

    options = () if form is PLAIN else ("x", form.with_lse)
    for seed in (0, 1):
        torch.manual_seed(seed)
        made = problem_forms.get_inputs(**sizes)
        tensors: Any = tuple(made[:6])
        if twice and seed == 0:
            tensors = (made[0],) * 3 + (made[3],) * 3
        names = {"packed": ("cu_seqlens_q", "cu_seqlens_k"), "lens": ("kv_lens",)}
        named = names.get(sizes.get("kind", ""), ("kv_lens", "block_table"))
        places = dict(zip(named, made[6:], strict=False))
        asked = form._replace(**places)
        given = (True, None, options, tuple(places.values()))
        got: Any = cuda_quick.quick(*tensors, *given)
        if seed == 0:
            assert got is None
            factor = 1 / math.sqrt(tensors[0].shape[3])
            out, lse = cuda.launch_form(*tensors, True, factor, asked)
            got = out if lse is None else (out, lse)
            cuda_quick.keep(tensors, True, None, asked, got, *given[2:])
        out, lse = got if form.with_lse else (got, None)
        truth, sums = attend(*tensors[:3], *(t.double() for t in tensors[3:]), True,
                             1 / math.sqrt(tensors[0].shape[3]), asked)  # fmt: skip
        assert out.dtype == form.out_dtype and out.shape == truth.shape
        assert out.stride() == torch.empty(out.shape).stride()
        error = (out.double() - truth).norm() / truth.norm()
        assert error <= BOUNDS[form.strict] + (2.0**-9 if out.dtype == torch.bfloat16 else 0)
        assert lse is None or torch.allclose(lse.double(), sums, rtol=1e-6, atol=1e-6)
    main = bound[-1 if kernel == "attend_wgmma" else -launches]
    assert main.kernel.name.startswith(kernel)
    assert [b.calls for b in bound[-launches:]] == [1] * launches


def test_what_other_kernels_do_is_not_remembered(bound: list[Bound]) -> None:
    wide: Any = tuple(problem_forms.get_inputs(batch=1, seq=2, heads=2, head_dim=300))
    out = wide[0].float()
    cuda_quick.keep(wide, True, None, PLAIN, out)
    assert cuda_quick.quick(*wide, True, None) is None and not bound
    odd: Any = tuple(problem_forms.get_inputs(batch=1, seq=2, heads=2, scales="head"))
    spaced = (*odd[:3], *(t.repeat_interleave(2)[::2] for t in odd[3:]))
    cuda_quick.keep(spaced, True, None, PLAIN, odd[0].float())
    assert cuda_quick.quick(*spaced, True, None) is None and not bound


def test_alignment_is_part_of_the_form(bound: list[Bound]) -> None:
    """The kernel's loads are chosen by it."""
    tensors: Any = tuple(problem_forms.get_inputs(batch=1, seq=4, heads=2, scales="head"))
    cuda_quick.keep(tensors, True, None, PLAIN, tensors[0].float())
    assert cuda_quick.quick(*tensors, True, None) is not None
    for number in range(3):
        t = tensors[number]
        moved = torch.empty(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape).copy_(t)
        others: Any = (*tensors[:number], moved, *tensors[number + 1 :])
        assert cuda_quick.quick(*others, True, None) is None
