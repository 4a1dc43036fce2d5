"""Calls of an operator whose form has been seen: what was found out then, in less host time.

At small sizes a call takes longer on the host than on the GPU. What an operator checks and chooses
depends on the form of its tensors alone, so it is done once for each form. PyTorch tells whether
tensors have a form, in one call of a fifth of the time that reading their sizes takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")

_MOST = 4096  # keys that are remembered
_MOST_OF_A_KEY = 8
# What TorchDynamo guards compiled functions with: types, dtypes, devices, sizes, strides, whether a
# gradient is wanted, and the dispatch keys, those of the thread included. Where PyTorch has them no
# longer, nothing is remembered.
_Guards: Any = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
# Of these types none takes part in the dispatch. A form has one of them for each tensor.
_PLAIN = (Tensor, torch.nn.Parameter)

_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
# Constant to TorchDynamo; what else compiles is a mode.
_compiling = torch.compiler.is_dynamo_compiling


class Forms(Generic[_T]):
    """What was found out about tensors, by their form.

    ``key`` beside the tensors: everything else that counts. Tensors of equal form and dispatch keys
    would be dispatched alike, so `find` may stand before the dispatcher of PyTorch.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[tuple[Callable[..., bool], _T]]] = {}

    def find(self, key: Hashable, *tensors: Tensor) -> _T | None:
        """What was kept for such tensors; to be asked where `undisturbed` only."""
        for check, found in self._kept.get(key, ()):
            if check(*tensors):
                return found
        return None

    def keep(self, key: Hashable, what: _T, *tensors: Tensor) -> None:
        """Keep ``what`` for tensors of this form, where nothing takes part in the dispatch but the
        tensors themselves."""
        if _Guards is None or not undisturbed() or any(type(t) not in _PLAIN for t in tensors):
            return
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return
        if torch._C._get_tracing_state() is not None:
            return
        if len(self._kept) >= _MOST:
            self._kept.clear()
        found = self._kept.setdefault(key, [])
        if len(found) >= _MOST_OF_A_KEY:
            found.clear()
        guards = _Guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
        found.append((guards.check, what))


def undisturbed() -> bool:
    """Whether neither a compiler nor a mode wants to see the operator that is called."""
    return not (_compiling() or _modes() or _function_modes())
