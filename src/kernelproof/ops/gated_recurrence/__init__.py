"""Gated linear-attention recurrence with gates on the key axis, the value axis or a whole head.

    from kernelproof.ops.gated_recurrence import gated_recurrence

    y = gated_recurrence(q, k, v, gate_v=gate)
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError
from kernelproof.ops.gated_recurrence import contract as _contract
from kernelproof.ops.gated_recurrence import reference as _reference

__all__ = ["gated_recurrence"]

_KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_IMPLS = (None, "cpu", "cuda", "reference")


@overload
def gated_recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    gate_k: Tensor | None = ...,
    gate_v: Tensor | None = ...,
    gate_head: Tensor | None = ...,
    scale: float = ...,
    initial_state: Tensor | None = ...,
    return_state: Literal[False] = ...,
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
    scale: float = ...,
    initial_state: Tensor | None = ...,
    return_state: Literal[True],
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
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    impl: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Run ``state[i, j] = g[i, j] * state[i, j] + k[i] * v[j]``, ``y[j] = scale * sum_i q[i] *
    state[i, j]`` over all steps of every batch and head, where ``g[i, j]`` is the product of the
    gates given: ``gate_k[i]``, ``gate_v[j]``, ``gate_head``. No gate is plain linear attention.

    Gates are multipliers, not logarithms: 0, negative and > 1 are legal. Mind the axis: the usual
    gated linear attention gates the key axis (``gate_k``).

    Args:
        q, k: ``(B, T, H, K)``. T, B and the other sizes may be 0; any strides.
        v: ``(B, T, H, V)``; q, k, v share a dtype, float32, float16 or bfloat16 (and float64 with
            ``impl="reference"``).
        gate_k: ``(B, T, H, K)``.
        gate_v: ``(B, T, H, V)``.
        gate_head: ``(B, T, H)``. All gates share a dtype: that of v, or float32.
        scale: factor on y (not on the state).
        initial_state: ``(B, H, K, V)``, float32 (float64 for float64 inputs); zeros by default.
        return_state: also return the state after the last step, a new tensor.
        impl: ``"cpu"`` or ``"cuda"`` (our kernels), ``"reference"`` (PyTorch operations, with
            gradients), or None for the kernel of v's device.

    Returns:
        ``y (B, T, H, V)``, contiguous, in v's dtype; with ``return_state`` the pair of y and the
        state ``(B, H, K, V)``, float32. The state is kept in float32 throughout. ``y[:, :t]`` does
        not depend, to the last bit, on anything after t.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or ``impl`` is unknown.
        UnsupportedError: ``impl`` does not fit the device or the dtype; or a tensor requires grad
            while a kernel without gradients was asked for.
    """
    _check(q, k, v, gate_k, gate_v, gate_head, initial_state, impl)
    tensors = (q, k, v, gate_k, gate_v, gate_head)
    if impl == "reference":
        y, state = _reference.run(*tensors, scale, initial_state)
        return (y, state) if return_state else y
    _check_kernel((*tensors, initial_state), v, impl)
    if return_state:
        return _contract.op_with_state(*tensors, float(scale), initial_state)
    return _contract.op(*tensors, float(scale), initial_state)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    initial_state: Tensor | None,
    impl: str | None,
) -> None:
    """Raise ValueError where shapes, dtypes, devices or ``impl`` are not acceptable."""
    if impl not in _IMPLS:
        raise ValueError(f"impl={impl!r} is unknown; give None, 'cpu', 'cuda' or 'reference'")
    if q.dim() != 4:
        raise ValueError(f"q has shape {tuple(q.shape)}; it must be (B, T, H, K)")
    if v.dim() != 4:
        raise ValueError(f"v has shape {tuple(v.shape)}; it must be (B, T, H, V)")
    batch, steps, heads, key_dim = q.shape
    value_dim = v.shape[-1]
    keys, values = (batch, steps, heads, key_dim), (batch, steps, heads, value_dim)
    _check_shape("k", k, keys, "(B, T, H, K), as q")
    _check_shape("v", v, values, "(B, T, H, V), with q's B, T and H")
    for name, tensor in (("q", q), ("k", k)):
        if tensor.dtype != v.dtype:
            raise ValueError(f"{name} is {tensor.dtype} and v is {v.dtype}; q, k and v must agree")
    if not v.dtype.is_floating_point:
        raise ValueError(f"q, k and v are {v.dtype}; they must be floating point")
    gate_dtype = None
    for name, gate, shape, text in (
        ("gate_k", gate_k, keys, "(B, T, H, K): it scales rows of the state"),
        ("gate_v", gate_v, values, "(B, T, H, V): it scales columns of the state"),
        ("gate_head", gate_head, (batch, steps, heads), "(B, T, H)"),
    ):
        if gate is None:
            continue
        _check_shape(name, gate, shape, text)
        if gate.dtype not in (v.dtype, torch.float32) or gate_dtype not in (None, gate.dtype):
            raise ValueError(
                f"{name} is {gate.dtype}; all gates must share one dtype, {v.dtype} (that of v) "
                "or torch.float32"
            )
        gate_dtype = gate.dtype
    if initial_state is not None:
        _check_shape(
            "initial_state", initial_state, (batch, heads, key_dim, value_dim), "(B, H, K, V)"
        )
        expected = torch.float64 if v.dtype == torch.float64 else torch.float32
        if initial_state.dtype != expected:
            raise ValueError(f"initial_state is {initial_state.dtype}; it must be {expected}")
    for name, tensor in (
        ("q", q), ("k", k), ("gate_k", gate_k), ("gate_v", gate_v),
        ("gate_head", gate_head), ("initial_state", initial_state),
    ):  # fmt: skip
        if tensor is not None and tensor.device != v.device:
            raise ValueError(f"{name} is on {tensor.device} and v on {v.device}; move one of them")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], text: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}, {text}")


def _check_kernel(tensors: tuple[Tensor | None, ...], v: Tensor, impl: str | None) -> None:
    """Raise UnsupportedError where a kernel (not the reference) cannot serve the call."""
    device = v.device.type
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
    if v.dtype not in _KERNEL_DTYPES:
        raise UnsupportedError(
            f"the kernels take float32, float16 and bfloat16, not {v.dtype}; "
            'use impl="reference"'
        )
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise UnsupportedError(
            "the kernels of gated_recurrence have no gradient, and a tensor requires grad; use "
            'impl="reference", or detach the tensors or enter torch.no_grad()'
        )
