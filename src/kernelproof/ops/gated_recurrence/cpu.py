"""The gated recurrence on a CPU: the launcher of ``kernel.cpp`` and its candidate module."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.build import c_library

_ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_NO_STRIDES = (0, 0, 0, 0)


def launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    with_state: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``y (B, T, H, V)`` in v's dtype and, if asked for, the last state ``(B, H, K, V)`` float32.

    The arguments are those of :func:`kernelproof.ops.gated_recurrence.gated_recurrence`, which
    checks them; here they are taken to be valid. Any strides; nothing is copied.
    """
    gate = gate_v if gate_v is not None else gate_k if gate_k is not None else gate_head
    plan = _plan(
        q.dtype,
        gate.dtype if gate is not None else torch.float32,
        q.shape,
        v.shape[-1],
        q.stride(),
        k.stride(),
        v.stride(),
        None if gate_k is None else gate_k.stride(),
        None if gate_v is None else gate_v.stride(),
        None if gate_head is None else gate_head.stride(),
        None if initial_state is None else initial_state.stride(),
    )
    y = torch.empty(v.shape, dtype=v.dtype)
    state = None
    if with_state:
        batch, _, heads, key_dim = q.shape
        state = torch.empty((batch, heads, key_dim, v.shape[-1]), dtype=torch.float32)
    failed = _function()(
        plan,
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        _address(gate_k),
        _address(gate_v),
        _address(gate_head),
        _address(initial_state),
        y.data_ptr(),
        _address(state),
        scale,
    )
    if failed:
        raise MemoryError(
            f"gated_recurrence: no memory for the scratch space of a state of {q.shape[-1]} by "
            f"{v.shape[-1]}"
        )
    return y, state


class ModelNew(nn.Module):
    """The CPU kernel as a candidate for ``problem.Model``."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        return launch(q, k, v, gate_v=gate)[0]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


@functools.cache
def _function() -> Any:
    function = c_library([Path(__file__).parent / "kernel.cpp"]).gated_recurrence
    function.argtypes = [ctypes.c_void_p] * 10 + [ctypes.c_float]
    function.restype = ctypes.c_int
    return function


@functools.lru_cache(maxsize=1024)
def _plan(
    element: torch.dtype,
    gate: torch.dtype,
    shape: Sequence[int],
    value_dim: int,
    *strides: Sequence[int] | None,
) -> Any:
    """The numbers of ``struct Plan``; it depends on no address, so a shape's calls share it.

    ``strides`` are those of q, k, v, gate_k, gate_v, gate_head and the initial state.
    """
    gate_code = 0 if gate == torch.float32 else _ELEMENTS[gate]
    numbers = [_ELEMENTS[element], gate_code, *shape, value_dim]
    for one in strides:
        numbers += [*one, 0][:4] if one is not None else _NO_STRIDES
    return (ctypes.c_int64 * len(numbers))(*numbers)
