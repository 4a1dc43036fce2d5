"""What the tensors of the gated recurrence must be; every way to a kernel passes through here."""

from __future__ import annotations

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError

_KERNEL_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_dtype_of_kernels(v: Tensor) -> None:
    """Raise UnsupportedError where the kernels do not take v's dtype."""
    if v.dtype not in _KERNEL_DTYPES:
        raise UnsupportedError(
            f'the kernels take float32, float16 and bfloat16, not {v.dtype}; use impl="reference"'
        )


def check_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    """Raise ValueError where shapes, dtypes or devices do not fit together."""
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
    for name, other in (
        ("q", q), ("k", k), ("gate_k", gate_k), ("gate_v", gate_v),
        ("gate_head", gate_head), ("initial_state", initial_state),
    ):  # fmt: skip
        if other is not None and other.device != v.device:
            raise ValueError(f"{name} is on {other.device} and v on {v.device}; move one of them")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], text: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}, {text}")
