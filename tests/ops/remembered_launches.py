"""Launches that calls of a known form remember, in the emulator."""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kernelproof import cuda_forms
from kernelproof.cuda import Kernel
from kernelproof.cuda_forms import Forms
from kernelproof.cuda_launch import changes
from kernelproof.tensor_map import TensorMap


def at(address: int, like: Tensor) -> Tensor:
    """The tensor of the form of ``like`` at an address."""
    if not like.numel():
        return like
    count = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
    memory = (ctypes.c_uint8 * (count * like.element_size())).from_address(address)
    return torch.frombuffer(memory, dtype=like.dtype).as_strided(like.shape, like.stride())


class Bound:
    """`kernelproof.cuda_launch.Bound` for the emulator."""

    def __init__(self, kernel: Kernel, args: tuple[Any, ...], how: tuple[Any, ...]) -> None:
        self.kernel, self.args, self.how = kernel, args, how
        self.calls = 0

    def __call__(self, *values: int) -> None:
        args = list(self.args)
        for i, value in zip([i for i, x in enumerate(args) if changes(x)], values, strict=True):
            arg = args[i]
            if isinstance(arg, TensorMap):
                args[i] = arg._replace(tensor=at(value, arg.tensor))
            else:
                args[i] = at(value, arg)
        self.kernel(*args, grid=self.how[0], block=self.how[1], shared=self.how[2])
        self.calls += 1


def remembered(monkeypatch: pytest.MonkeyPatch, quick: ModuleType) -> list[Bound]:
    """What ``quick``, an operator's `cuda_quick`, will remember while emulated launches count as
    real ones; no form is known."""
    found: list[Bound] = []

    def make(kernel: Kernel, device: int, args: Any, how: Any) -> Bound:
        found.append(Bound(kernel, args, how))
        return found[-1]

    monkeypatch.setattr(Kernel, "bound", make)
    monkeypatch.setattr(quick, "launches_are_taken", lambda: False)
    for module in (cuda_forms, quick):  # the emulator's stand-in is a mode
        monkeypatch.setattr(module, "undisturbed", lambda: True)
    monkeypatch.setattr(quick, "_forms", Forms())
    return found
