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
from kernelproof.ops.gated_recurrence.checks import check_tensors

__all__ = ["gated_recurrence"]

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
    if impl not in _IMPLS:
        raise ValueError(f"impl={impl!r} is unknown; give None, 'cpu', 'cuda' or 'reference'")
    tensors = (q, k, v, gate_k, gate_v, gate_head)
    if impl == "reference":
        check_tensors(*tensors, initial_state)
        y, state = _reference.run(*tensors, scale, initial_state)
        return (y, state) if return_state else y
    _check_kernel((*tensors, initial_state), v, impl)  # the operator checks the rest
    run = _contract.op_with_state if return_state else _contract.op
    result: Tensor | tuple[Tensor, Tensor] = run(*tensors, float(scale), initial_state)
    return result


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
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        raise UnsupportedError(
            "the kernels of gated_recurrence have no gradient, and a tensor requires grad; use "
            'impl="reference", or detach the tensors or enter torch.no_grad()'
        )
