"""Packed values are what was packed, whatever a tensor's layout, dtype or kind."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch

from kernelproof.worker.packing import packed, parts, whole

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8,
    torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn,
]  # fmt: skip


def back(value: Any) -> Any:
    return pickle.loads(packed(value))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.numel() == 0:
        return True
    return (
        a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_comes_back(dtype: torch.dtype) -> None:
    x = (torch.randn(3, 5) * 4).to(dtype)
    y = back([x, {"again": x}])
    assert y[0].dtype is dtype and y[0].shape == x.shape and same_bits(y[0], x)
    assert same_bits(y[1]["again"], x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, ::2],
        lambda x: x[:1].expand(4, 6),
        lambda x: x[0, 0],
        lambda x: x[2:2],
        lambda x: x.flatten()[5:],
    ],
)
def test_a_view_keeps_its_strides_and_offset(view: Any) -> None:
    x = view(torch.randn(5, 6))
    y = back(x)
    assert (y.shape, y.stride(), y.storage_offset()) == (x.shape, x.stride(), x.storage_offset())
    assert torch.equal(x, y)


def test_what_comes_back_can_be_written_and_is_apart() -> None:
    x = torch.zeros(4)
    y = back(x)
    y += 1
    assert x.sum() == 0 and y.sum() == 4


class Own(torch.Tensor):
    pass


def test_what_is_no_plain_tensor_goes_the_usual_way() -> None:
    wants = torch.ones(3, requires_grad=True)
    assert back(wants).requires_grad
    conjugate = torch.randn(3, dtype=torch.complex64).conj()
    assert torch.equal(back(conjugate), conjugate)
    sparse = torch.eye(3).to_sparse()
    assert back(sparse).layout is torch.sparse_coo
    assert type(back(torch.ones(2).as_subclass(Own))) is Own
    named = torch.ones(2)
    named.word = "kept"  # type: ignore[attr-defined]
    assert back(named).word == "kept"
    assert isinstance(back(torch.nn.Parameter(torch.ones(2))), torch.nn.Parameter)
    assert back({"a": (1, 2.5, None, "text"), "d": torch.float16}) == {
        "a": (1, 2.5, None, "text"), "d": torch.float16,
    }  # fmt: skip


def test_nan_and_its_payload_survive() -> None:
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000], dtype=torch.int32)
    assert torch.equal(back(bits.view(torch.float32)).view(torch.int32), bits)


def test_large_storages_go_beside_the_pickle_and_come_back_as_they_were() -> None:
    large = torch.randn(700, 500)
    value = {"rows": large.T[3:90], "again": large, "small": torch.arange(5), "n": 3}
    sent = parts(value)
    assert len(sent) == 3 and len(sent[0]) < 4096
    got = whole([bytearray(part) for part in sent])
    assert got["n"] == 3 and torch.equal(got["small"], value["small"])
    for name in ("rows", "again"):
        assert torch.equal(got[name], value[name])
        assert got[name].stride() == value[name].stride()
        assert got[name].storage_offset() == value[name].storage_offset()
    # Each has memory of its own, which is not the sender's.
    got["again"].zero_()
    assert torch.equal(got["rows"], large.T[3:90]) and float(large.abs().sum()) > 0


def test_parts_that_an_error_keeps_are_collected() -> None:
    # In a process of its own: a memoryview of a memoryview in a cycle ends the interpreter (3.11).
    script = """
import gc, torch
from kernelproof.worker import packing
def kept():
    sent = packing.parts(torch.zeros(1 << 20))
    try:
        raise ValueError
    except ValueError as error:
        held = error
for _ in range(20):
    kept()
    gc.collect()
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0 and not ended.stderr
