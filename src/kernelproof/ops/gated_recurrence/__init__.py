"""Gated linear-attention recurrence with gates on the key axis, the value axis or a whole head.

from kernelproof.ops.gated_recurrence import gated_recurrence, gated_recurrence_step

y, state = gated_recurrence(q, k, v, gate_k=gate, return_state=True)
y_next = gated_recurrence_step(q_next, k_next, v_next, state, gate_k=gate_next)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, overload

import torch
from torch import Tensor

from kernelproof.cuda_forms import undisturbed
from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence import contract as _contract
from kernelproof.ops.gated_recurrence import cuda_quick as _quick
from kernelproof.ops.gated_recurrence import reference as _reference
from kernelproof.ops.gated_recurrence.call import Call
from kernelproof.ops.gated_recurrence.checks import check_tensors, check_writable
from kernelproof.ops.gated_recurrence.explaining import explain

__all__ = ["explain", "gated_recurrence", "gated_recurrence_step"]

_IMPLS = (None, "cpu", "cuda", "reference", "triton")


@overload
def gated_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gate_k: Tensor | None = ...,
    gate_v: Tensor | None = ...,
    gate_head: Tensor | None = ...,
    log_gates: bool = ...,
    scale: float = ...,
    initial_state: Tensor | None = ...,
    return_state: Literal[False] = ...,
    cu_seqlens: Tensor | None = ...,
    impl: str | None = ...,
) -> Tensor: ...
@overload
def gated_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gate_k: Tensor | None = ...,
    gate_v: Tensor | None = ...,
    gate_head: Tensor | None = ...,
    log_gates: bool = ...,
    scale: float = ...,
    initial_state: Tensor | None = ...,
    return_state: Literal[True],
    cu_seqlens: Tensor | None = ...,
    impl: str | None = ...,
) -> tuple[Tensor, Tensor]: ...
def gated_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    log_gates: bool = False,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run ``state[i, j] = g[i, j] * state[i, j] + k[i] * v[j]``, ``y[j] = scale * sum_i q[i] *
    state[i, j]`` over all steps of every sequence and head, where ``g[i, j]`` is the product of the
    gates given: ``gate_k[i]``, ``gate_v[j]``, ``gate_head``. No gate is plain linear attention.

    Gates are multipliers: 0, negative and > 1 are legal, and so are their gradients. Mind the axis:
    the usual gated linear attention gates the key axis (``gate_k``).

    Args:
        q, k: ``(B, T, Hq, K)``. T, B and the other sizes may be 0; any strides.
        v: ``(B, T, H, V)``, H a multiple of Hq: head h of v goes with head ``h // (H // Hq)`` of q
            and k. q, k, v share a dtype, float32, float16 or bfloat16; float64 on a CPU and with
            ``impl="reference"``.
        gate_k: ``(B, T, H, K)``.
        gate_v: ``(B, T, H, V)``.
        gate_head: ``(B, T, H)``. All gates share a dtype: that of v, or float32.
        log_gates: the gates are given as natural logarithms (``-inf`` is a gate of 0).
        scale: factor on y (not on the state).
        initial_state: ``(N, H, K, V)``, float32 (float64 for float64 inputs); zeros by default. N
            is B, or the number of sequences in ``cu_seqlens``.
        return_state: also return the state after the last step, a new tensor.
        cu_seqlens: ``(N + 1,)``, int32 or int64, on v's device, rising from 0 to T: sequence n is
            the steps ``cu_seqlens[n] .. cu_seqlens[n + 1] - 1`` of the one row (B is 1). Sequences
            may be empty. On a GPU the values are not read by the host, so they are not checked;
            steps outside of all sequences have undefined y.
        impl: ``"cpu"`` or ``"cuda"`` (our kernels), ``"reference"`` (PyTorch operations), or None
            for the kernel of v's device. There is no Triton kernel.

    Returns:
        ``y (B, T, H, V)``, contiguous, in v's dtype; with ``return_state`` the pair of y and the
        state ``(N, H, K, V)``. The state is kept in float32 throughout (float64 for float64).
        ``y[:, :t]`` does not depend, to the last bit, on anything after t.

    Gradients exist for q, k, v, the gates and the initial state; nothing but these is kept for
    them. There is no second derivative, except with ``impl="reference"``.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, ``impl`` is unknown, or (on a
            CPU) ``cu_seqlens`` does not cut T steps into sequences.
        UnsupportedError: ``impl`` does not fit the device or the dtype.
    """
    tensors = (q, k, v, gate_k, gate_v, gate_head)
    key = None
    if undisturbed() and v.is_cuda and (impl is None or impl == "cuda"):
        places = (k, v, gate_k, gate_v, gate_head, initial_state, cu_seqlens)
        key = _quick.key_of(q, places, log_gates, scale, return_state)
        given = [q, *[t for t in places if t is not None]]
        done = _quick.quick(key, given)
        if done is not None:
            return done
    if _by_reference(v, impl):
        check_tensors(*tensors, initial_state, cu_seqlens)
        y, state = _reference.run(*tensors, log_gates, scale, initial_state, cu_seqlens)
        return (y, state) if return_state else y
    with_gradients, without = _contract.OPS[return_state]  # which check the rest
    tracked = _tracked((*tensors, initial_state))
    run = with_gradients if tracked else without
    result: Tensor | tuple[Tensor, Tensor] = run(
        *tensors, log_gates, float(scale), initial_state, cu_seqlens
    )
    if key is not None and not tracked:
        call = Call(*tensors, initial_state, None, log_gates, cu_seqlens)
        _quick.keep(key, given, call, float(scale), return_state)
    return result


def gated_recurrence_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    log_gates: bool = False,
    scale: float = 1.0,
    impl: str | None = None,
) -> Tensor:
    """One step of :func:`gated_recurrence`, as in decoding; **updates** ``state`` **in place**.

    ``state`` is written by every call, and no copy of it is kept: clone it before the call to go
    back. Its memory stays where it is, so that a captured CUDA graph can be replayed step by step.
    On a CPU, steps after a prefill give the bits of the whole sequence at once; on a GPU they agree
    within rounding (see the README).

    Args:
        q, k: ``(B, Hq, K)``. The arguments are those of :func:`gated_recurrence` without the axis
            of time.
        v: ``(B, H, V)``.
        state: ``(B, H, K, V)``, float32 (float64 for float64 inputs), any strides but 0.
        gate_k, gate_v, gate_head: ``(B, H, K)``, ``(B, H, V)``, ``(B, H)``.
        log_gates, scale, impl: as there.

    Returns:
        ``y (B, H, V)``, in v's dtype.

    Raises:
        ValueError: as there; or elements of ``state`` share memory.
        UnsupportedError: as there; or a tensor requires grad: a state that is overwritten cannot
            be differentiated through. Use :func:`gated_recurrence`.
    """
    tensors = (q, k, v, gate_k, gate_v, gate_head)
    key = None
    if undisturbed() and v.is_cuda and (impl is None or impl == "cuda"):
        places = (k, v, gate_k, gate_v, gate_head, state)
        key = _quick.key_of(q, places, log_gates, scale, None)
        given = [q, *[t for t in places if t is not None]]
        done = _quick.quick(key, given)
        if done is not None:
            torch.autograd.graph.increment_version(state)
            assert isinstance(done, Tensor)
            return done
    if _tracked((*tensors, state)):
        raise UnsupportedError(
            "gated_recurrence_step updates the state in place and has no gradient, and a tensor "
            "requires grad; call it under torch.no_grad(), or use gated_recurrence"
        )
    if _by_reference(v, impl):
        steps = _contract.check_step_tensors(*tensors, state)
        check_writable(state)
        run: Callable[..., tuple[Tensor, Tensor]] = _reference.run
        y, last = run(*steps, log_gates, scale, state)
        state.copy_(last)
        return y.squeeze(1)
    result: Tensor = _contract.op_step(
        q, k, v, state, gate_k, gate_v, gate_head, log_gates, float(scale)
    )
    if key is not None:
        call = Call(*tensors, state, None, log_gates)
        _quick.keep(key, given, call, float(scale), None)
    return result


def _tracked(tensors: tuple[Tensor | None, ...]) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _by_reference(v: Tensor, impl: str | None) -> bool:
    """Whether the reference was asked for. Raises where ``impl`` cannot serve v's device."""
    if impl not in _IMPLS:
        raise ValueError(f"impl={impl!r} is unknown; give None, 'cpu', 'cuda' or 'reference'")
    if impl == "reference":
        return True
    device = v.device.type
    if impl == "triton":
        raise UnsupportedError(
            "gated_recurrence has no Triton kernel; give impl=None for the kernel of the device "
            f"({device!r})"
        )
    if impl is not None and impl != device:
        raise UnsupportedError(
            f"impl={impl!r} was asked for, but the tensors are on {device!r}; move them, or give "
            "impl=None"
        )
    if device not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"gated_recurrence has kernels for 'cpu' and 'cuda', not for {device!r}; "
            'use impl="reference"'
        )
    return False
