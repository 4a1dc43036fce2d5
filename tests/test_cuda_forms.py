"""What is remembered of the form of tensors: found for that form alone, and only where nothing but
the tensors takes part in the dispatch."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernelproof.cuda_forms import Forms, undisturbed
from kernelproof.cuda_launch import bound


class Sub(Tensor):
    pass


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def kept() -> tuple[Forms[str], Tensor, Tensor]:
    x, y = torch.zeros(2, 6), torch.zeros(3, dtype=torch.int8)
    forms: Forms[str] = Forms()
    forms.keep(1.0, "seen", x, y)
    return forms, x, y


def test_a_parameter_is_remembered_as_such() -> None:
    weight, forms = torch.nn.Parameter(torch.zeros(3), requires_grad=False), Forms[str]()
    forms.keep(1.0, "seen", weight)
    assert forms.find(1.0, torch.nn.Parameter(torch.ones(3), requires_grad=False)) == "seen"
    assert forms.find(1.0, torch.ones(3)) is None
    assert forms.find(1.0, torch.nn.Parameter(torch.ones(3))) is None


def test_other_tensors_of_the_form_are_found() -> None:
    forms, x, y = kept()
    assert forms.find(1.0, x, y) == "seen"
    assert forms.find(1.0, torch.ones(2, 7)[:, :6].contiguous(), y + 1) == "seen"
    assert forms.find(2.0, x, y) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:1], lambda x: torch.zeros(2, 7)[:, :6], lambda x: x.double(),
        lambda x: x.requires_grad_(), lambda x: x.as_subclass(Sub), torch.nn.Parameter,
        lambda x: x.to("meta"), torch._neg_view, lambda x: x.unsqueeze(0), lambda x: x.to_sparse(),
    ],
)  # fmt: skip
def test_any_other_form_is_not(change: Callable[[Tensor], Tensor]) -> None:
    forms, _, y = kept()
    assert forms.find(1.0, change(torch.zeros(2, 6)), y) is None


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_not_under_a_transformation() -> None:
    forms, x, y = kept()
    found: list[str | None] = []

    def look(x: Tensor) -> Tensor:
        found.append(forms.find(1.0, x, y) if undisturbed() else None)
        forms.keep(2.0, "kept here", x, y)
        return x + 1

    torch.func.vmap(look)(torch.zeros(4, 2, 6))
    torch.func.functionalize(look)(x)
    torch.func.grad(lambda x: look(x).sum())(x)
    make_fx(look)(x)
    make_fx(look, tracing_mode="symbolic")(x)
    with Mode():
        look(x)
    with Functions():
        look(x)
    with torch.inference_mode():
        look(torch.zeros(2, 6))
    torch.jit.trace(look, (x,), check_trace=False)
    assert found == [None] * 9
    assert forms.find(2.0, x, y) is None


def test_what_is_kept_stays_small() -> None:
    forms: Forms[int] = Forms()
    tensors = [torch.zeros(n + 1) for n in range(30)]
    for number, x in enumerate(tensors):
        forms.keep(None, number, x)
    held = [forms.find(None, x) for x in tensors]
    assert held[-1] == 29 and sum(n is not None for n in held) <= 8


class Loaded:
    """A kernel of four parameters, whose launches are read instead of made."""

    name, device, function = "add", 3, 0x77
    layout = ((0, 8), (8, 4), (16, 8), (64, 128))
    memory = ctypes.create_string_buffer(192)

    def __init__(self) -> None:
        self.read: list[tuple[int, list[bytes]]] = []
        self.made: list[tuple[Any, ...]] = []
        self.stream, self.status = 5, 0

    def current_stream(self, device: int) -> int:
        assert device == self.device
        return self.stream

    def current_device(self) -> int:
        return self.device

    def config(self, how: tuple[Any, ...], stream: int) -> int:
        self.made.append((*how, stream))
        return 1000 + stream

    def start(self, config: int, function: int, parameters: int, extra: None) -> int:
        assert function == self.function
        places = (ctypes.c_void_p * 4).from_address(parameters)
        sizes = [size for _, size in self.layout]
        values = [ctypes.string_at(p, n) for p, n in zip(places, sizes, strict=True)]
        self.read.append((config, values))
        return self.status

    def failed(self, status: int) -> None:
        raise RuntimeError(f"status {status}")


def test_bound_launches_differ_in_addresses() -> None:
    loaded: Any = Loaded()
    x = torch.zeros(16, 16, dtype=torch.bfloat16)
    made = SimpleNamespace(encoded=lambda: b"m" * 128)
    launch = bound(loaded, (x, 7, 9.5, made), (1, 32, 0, None, False, False, True))
    launch(0x1234, b"n" * 128)
    loaded.stream = 6
    launch(0x5678, b"o" * 128)
    launch(0x9ABC, b"p" * 128)
    assert [config for config, _ in loaded.read] == [1005, 1006, 1006]
    assert [how[-1] for how in loaded.made] == [5, 6]
    for (_, values), address, letter in zip(
        loaded.read, (0x1234, 0x5678, 0x9ABC), "nop", strict=True
    ):
        assert struct.unpack("<Q", values[0])[0] == address
        assert struct.unpack("<i", values[1])[0] == 7 and struct.unpack("<d", values[2])[0] == 9.5
        assert values[3] == letter.encode() * 128
    loaded.status = 700
    with pytest.raises(RuntimeError, match="700"):
        launch(0, b"q" * 128)
