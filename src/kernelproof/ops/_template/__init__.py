"""A product with a gate: ``x * sigmoid(y)``, element by element.

from kernelproof.ops.template_op import template_op

out = template_op(x, y)
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError

from . import contract as _contract
from .problem import Model as _Model

__all__ = ["template_op"]

_IMPLS = (None, "cpu", "cuda", "reference")


def template_op(x: Tensor, y: Tensor, *, impl: str | None = None) -> Tensor:
    """``x * sigmoid(y)``.

    Args:
        x, y: of one shape, any, and any strides; float32 (and every other floating dtype with
            ``impl="reference"``).
        impl: ``"cpu"`` or ``"cuda"`` (our kernels), ``"reference"`` (PyTorch operations, with
            gradients), or None for the kernel of x's device.

    Returns:
        A new tensor of x's shape and dtype; contiguous, unless it is the reference's.

    Raises:
        ValueError: shapes, dtypes or devices do not fit together, or ``impl`` is unknown.
        UnsupportedError: ``impl`` does not fit the device or the dtype; or a tensor requires grad
            while a kernel without gradients was asked for.
    """
    if impl not in _IMPLS:
        raise ValueError(f"impl={impl!r} is unknown; give None, 'cpu', 'cuda' or 'reference'")
    if impl == "reference":
        _contract.check_tensors(x, y)
        result: Tensor = _Model()(x, y)
        return result
    _check_kernel(x, y, impl)  # the operator checks the rest
    result = _contract.op(x, y)
    return result


def _check_kernel(x: Tensor, y: Tensor, impl: str | None) -> None:
    """Raise UnsupportedError where a kernel (not the reference) cannot serve the call."""
    device = x.device.type
    if impl is not None and impl != device:
        raise UnsupportedError(
            f"impl={impl!r} was asked for, but x is on {device!r}; move the tensors, or give "
            "impl=None"
        )
    if device not in ("cpu", "cuda"):
        raise UnsupportedError(
            f"there are kernels for 'cpu' and 'cuda', not for {device!r}; use impl=\"reference\""
        )
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):
        raise UnsupportedError(
            "the kernels have no gradient, and a tensor requires grad; use "
            'impl="reference", or detach the tensors or enter torch.no_grad()'
        )
