"""Calls of a form that has been met: the same results, and whatever differs takes the long way."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from test_mla_kv_cuda import call
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelproof.cuda_forms import Forms
from kernelproof.ops.mla_kv import contract, mla_kv, quick

F32 = torch.float32


@pytest.fixture
def long_way(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Counts the calls that go through `contract.run`; no form is known."""
    monkeypatch.setattr(contract, "FORMS", Forms())
    with mock.patch.object(contract, "run", wraps=contract.run) as counted:
        yield counted


def operands(device: str = "cpu", **options: Any) -> tuple[list[Tensor], dict[str, Any]]:
    return call(24, 64, 16, 2, 8, 8, device=device, **options)


def test_guards_tell_every_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that is remembered for operands on the CPU, where it cannot be launched."""
    monkeypatch.setattr(contract, "FORMS", Forms())
    monkeypatch.setattr(quick.cuda, "runner", lambda *_: lambda *given: "ran")
    given, _ = operands()
    names = dict(zip(quick._NAMES, (*given, None, None), strict=True))
    key = (given[0].shape, 2)
    quick.remember(key, names, {})
    known = contract.FORMS.find(key, *given)
    assert known is not None and known(*given) == "ran"
    hidden, down, k, v = given

    class Wrapped(Tensor):
        pass

    for other in (
        (hidden.double(), down, k, v), (hidden, down.half(), k, v), (hidden, down, k.to("meta"), v),
        (hidden, down, k, v.t().contiguous().t()), (hidden, down[:, ::2], k, v),
        (hidden, down.clone().requires_grad_(), k, v), (hidden.as_subclass(Wrapped), down, k, v),
        (hidden, torch.nn.Parameter(down, requires_grad=False), k, v),
    ):  # fmt: skip
        assert contract.FORMS.find(key, *other) is None

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return f(*args, **(kwargs or {}))

    with Watching():
        assert contract.FORMS.find(key, *given) is None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert contract.FORMS.find(key, *given) is None


def test_nothing_is_remembered_on_the_cpu(long_way: Any) -> None:
    given, options = operands()
    for _ in range(2):
        mla_kv(*given, kv_heads=2)
    del options
    assert not contract.FORMS._kept and long_way.call_count == 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options",
    [{}, dict(norm=True, rope=8), dict(dtype=torch.bfloat16)],
    ids=str,
)
def test_gpu_second_calls_are_quick_and_the_same(long_way: Any, options: dict[str, Any]) -> None:
    rope = options.get("rope", 0)
    given, more = call(24, 64, 16, 2, 8, 8 + rope, device="cuda", **options)
    first = mla_kv(*given, **more)
    assert long_way.call_count == 1 and len(contract.FORMS._kept) == 1
    for number in range(3):
        fresh = [t.clone() for t in given]
        fresh[0] = fresh[0] * (number + 1)
        again, want = mla_kv(*fresh, **more), mla_kv(*fresh, **more, impl="cuda")
        for a, b in zip(parts(again), parts(want), strict=True):
            assert torch.equal(a, b)
    assert long_way.call_count == 4  # those with impl
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for a, b in zip(parts(mla_kv(*given, **more)), parts(first), strict=True):
            assert torch.equal(a, b)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = mla_kv(*given, **more)
    graph.replay()
    for a, b in zip(parts(captured), parts(first), strict=True):
        assert torch.equal(a, b)
    assert long_way.call_count == 4


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [((333, 1000, 100, 5, 60, 60), F32), ((16, 2048, 512, 16, 128, 128), F32)],
    ids=str,
)
def test_gpu_second_calls_of_clusters(long_way: Any, sizes: Any, dtype: torch.dtype) -> None:
    given, more = call(*sizes, dtype=dtype, device="cuda")
    want = mla_kv(*given, **more)
    for _ in range(3):
        assert torch.equal(mla_kv(*given, **more), want)
    assert long_way.call_count == 1


@pytest.mark.gpu
def test_gpu_what_differs_takes_the_long_way(long_way: Any) -> None:
    given, more = operands("cuda")
    hidden, down, k, v = given
    want = mla_kv(*given, **more)
    odd = torch.empty(hidden.numel() + 1, device="cuda")[1:].view_as(hidden).copy_(hidden)
    assert torch.allclose(mla_kv(odd, down, k, v, **more), want, atol=1e-5)
    assert long_way.call_count == 2
    trained = down.clone().requires_grad_()
    out = mla_kv(hidden, trained, k, v, **more)
    out.sum().backward()
    assert trained.grad is not None and len(contract.FORMS._kept) == 1
    turned = k.t().contiguous().t()
    assert torch.allclose(mla_kv(hidden, down, turned, v, **more), want, atol=1e-5)
    with pytest.raises(TypeError):
        mla_kv(hidden, down.double(), k, v, **more)


def parts(out: Any) -> tuple[Tensor, ...]:
    return out if isinstance(out, tuple) else (out,)
