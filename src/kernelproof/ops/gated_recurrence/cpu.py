"""The gated recurrence on a CPU: the launchers of ``kernel.cpp`` and ``backward.cpp``, and the
candidate module."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.build import c_library
from kernelproof.ops.gated_recurrence.call import Call
from kernelproof.ops.gated_recurrence.checks import check_bounds, state_dtype
from kernelproof.ops.gated_recurrence.forms import Form
from kernelproof.ops.gated_recurrence.gradients import Sums, wanted

_ELEMENTS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.float64: 3}
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
    *,
    log_gates: bool = False,
    cu_seqlens: Tensor | None = None,
    state_out: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``y (B, T, H, V)`` in v's dtype and, if asked for, the last state ``(N, H, K, V)``.

    The arguments are those of :func:`kernelproof.ops.gated_recurrence.gated_recurrence`, which
    checks them; here they are taken to be valid. Any strides; nothing is copied. ``state_out``
    takes the last state, and may be ``initial_state`` itself.

    Raises:
        ValueError: the values of ``cu_seqlens`` do not cut T steps into sequences.
    """
    bounds = _bounds(cu_seqlens, q.shape[1])
    state = state_out
    if with_state and state is None:
        state = torch.empty(_state_shape(q, v, cu_seqlens), dtype=state_dtype(v))
    call = Call(q, k, v, gate_k, gate_v, gate_head, initial_state, state, log_gates, cu_seqlens)
    plan = _plan_of(call, None)
    y = torch.empty(v.shape, dtype=v.dtype)
    failed = _function("gated_recurrence", "kernel.cpp", v.dtype, 11)(
        plan,
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        _address(gate_k),
        _address(gate_v),
        _address(gate_head),
        _address(initial_state),
        _address(bounds),
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


def launch_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    scale: float,
    state: Tensor,
    log_gates: bool = False,
) -> Tensor:
    """``y (B, 1, H, V)`` in v's dtype; ``state (B, H, K, V)`` is updated in place. The tensors are
    those of `gated_recurrence_step` with an axis of time of size 1, of any strides."""
    y, _ = launch(
        q, k, v, gate_k, gate_v, gate_head, scale, state, log_gates=log_gates, state_out=state
    )
    return y


def launch_backward(
    grad: Tensor,
    grad_state: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    *,
    log_gates: bool = False,
    cu_seqlens: Tensor | None = None,
) -> Sums:
    """The sums that gradients are made of; ``grad (B, T, H, V)`` is that of y, in v's dtype, and
    ``grad_state`` that of the last state. Any strides; nothing is copied."""
    dtype = state_dtype(v)
    bounds = _bounds(cu_seqlens, q.shape[1])
    keys = (*v.shape[:3], q.shape[-1])
    rows, columns = wanted(gate_k, gate_v, gate_head)
    # Where v has no columns nothing depends on q and k, and the kernel has nothing to write.
    make = torch.zeros if v.shape[-1] == 0 else torch.empty
    initial = None
    if initial_state is not None:
        initial = torch.empty(initial_state.shape, dtype=dtype)
    sums = Sums(
        make(keys, dtype=dtype),
        make(keys, dtype=dtype),
        torch.empty(v.shape, dtype=dtype),
        make(keys, dtype=dtype) if rows else None,
        torch.empty(v.shape, dtype=dtype) if columns else None,
        initial,
    )
    if v.shape[-1] == 0:
        return sums
    call = Call(
        q, k, v, gate_k, gate_v, gate_head, initial_state, grad_state, log_gates, cu_seqlens
    )
    plan = _plan_of(call, grad)
    failed = _function("gated_recurrence_backward", "backward.cpp", v.dtype, 17)(
        plan,
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
        _address(gate_k),
        _address(gate_v),
        _address(gate_head),
        _address(initial_state),
        _address(bounds),
        grad.data_ptr(),
        _address(grad_state),
        *map(_address, sums),
        scale,
    )
    if failed:
        raise MemoryError(
            f"gated_recurrence: no memory for the checkpoints of {q.shape[1]} steps of a state of "
            f"{q.shape[-1]} by {v.shape[-1]}"
        )
    return sums


class ModelNew(nn.Module):
    """The CPU kernel as a candidate for ``problem.Model`` and ``problem_forms.Model``."""

    def __init__(self, *form: Any) -> None:
        super().__init__()
        self.form = Form(*form)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        if self.form == _FOUNDING and not torch.is_grad_enabled():
            return launch(q, k, v, gate_v=rest[0])[0]
        return self.form.run(launch, launch_backward, q, k, v, *rest)


_FOUNDING = Form()


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _bounds(cu_seqlens: Tensor | None, tokens: int) -> Tensor | None:
    if cu_seqlens is None:
        return None
    check_bounds(cu_seqlens.tolist(), tokens)
    return cu_seqlens.to(torch.int64).contiguous()


def _state_shape(q: Tensor, v: Tensor, cu_seqlens: Tensor | None) -> tuple[int, int, int, int]:
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return sequences, v.shape[2], q.shape[3], v.shape[3]


@functools.cache
def _function(name: str, source: str, dtype: torch.dtype, pointers: int) -> Any:
    real = "double" if dtype == torch.float64 else "float"
    library = c_library([Path(__file__).parent / source], cflags=(f"-DREAL={real}",))
    function = getattr(library, name)
    function.argtypes = [ctypes.c_void_p] * pointers + [ctypes.c_double]
    function.restype = ctypes.c_int
    return function


def _plan_of(call: Call, grad: Tensor | None) -> Any:
    gate = call.gate
    return _plan(
        call.q.dtype,
        gate.dtype if gate is not None else call.q.dtype,
        call.log_gates,
        call.q.shape,
        call.v.shape,
        call.sequences,
        *call.strides(),
        None if grad is None else grad.stride(),
    )


@functools.lru_cache(maxsize=1024)
def _plan(
    element: torch.dtype,
    gate: torch.dtype,
    log_gates: bool,
    keys: Sequence[int],
    values: Sequence[int],
    sequences: int,
    *strides: Sequence[int] | None,
) -> Any:
    """The numbers of ``struct Plan``; it depends on no address, so a shape's calls share it.

    ``keys`` and ``values`` are the shapes of q and v; ``sequences`` is -1 for a plain batch;
    ``strides`` are those of q, k, v, the gates, the initial and last state, the gradient of y.
    """
    batch, steps, key_heads, key_dim = keys
    heads, value_dim = values[2:]
    numbers = [
        _ELEMENTS[element], _ELEMENTS[gate], int(log_gates), batch if sequences < 0 else sequences,
        steps, heads, key_dim, value_dim, heads // key_heads if key_heads else 1,
    ]  # fmt: skip
    for one in strides:
        numbers += [*one, 0][:4] if one is not None else _NO_STRIDES
    return (ctypes.c_int64 * len(numbers))(*numbers)
