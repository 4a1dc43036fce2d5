"""The ``torch.library`` definition, so that ``torch.compile`` sees one opaque operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError

_NAME = "kernelproof::template_op"

torch.library.define(_NAME, "(Tensor x, Tensor y) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def check_tensors(x: Tensor, y: Tensor) -> None:
    """Raise ValueError where shapes, dtypes or devices do not fit together."""
    if x.shape != y.shape:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; they must be equal: expand one "
            "of them, as torch.broadcast_tensors does"
        )
    if x.dtype != y.dtype:
        raise ValueError(f"x is {x.dtype} and y is {y.dtype}; they must agree: convert one of them")
    if not x.dtype.is_floating_point:
        raise ValueError(f"x and y are {x.dtype}; they must be floating point, such as x.float()")
    if x.device != y.device:
        raise ValueError(f"x is on {x.device} and y on {y.device}; move one of them")


def _check_for_kernels(x: Tensor, y: Tensor) -> None:
    """Every way to a kernel passes through here, a direct call of the operator included."""
    check_tensors(x, y)
    if x.dtype != torch.float32:
        raise UnsupportedError(
            f'the kernels take float32, not {x.dtype}; use x.float(), or impl="reference"'
        )


@torch.library.impl(_NAME, "cpu")
def _cpu(x: Tensor, y: Tensor) -> Tensor:
    # Imported on the first call: a machine without a compiler can still import the operator.
    from .cpu import launch

    _check_for_kernels(x, y)
    return launch(x, y)


@torch.library.impl(_NAME, "cuda")
def _cuda(x: Tensor, y: Tensor) -> Tensor:
    from .cuda import launch

    _check_for_kernels(x, y)
    return launch(x, y)


def _fake(x: Tensor, y: Tensor) -> Tensor:
    _check_for_kernels(x, y)
    return x.new_empty(x.shape)


torch.library.register_fake(_NAME, _fake)

op: Any = torch.ops.kernelproof.template_op.default
