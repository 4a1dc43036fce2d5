"""What the tensors of the gated recurrence must be; every way to a kernel passes through here."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernelproof.errors import UnsupportedError

_KERNEL_DTYPES = {
    "cpu": (torch.float32, torch.float16, torch.bfloat16, torch.float64),
    "cuda": (torch.float32, torch.float16, torch.bfloat16),
}


def check_dtype_of_kernel(device: str, v: Tensor) -> None:
    """Raise UnsupportedError where the kernel of ``device`` does not take v's dtype."""
    accepted = _KERNEL_DTYPES[device]
    if v.dtype not in accepted:
        names = ", ".join(str(d).removeprefix("torch.") for d in accepted)
        raise UnsupportedError(
            f"the {device} kernel takes {names}, not {v.dtype}; convert the tensors, or use "
            'impl="reference"'
        )


def check_tensors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None = None,
    *,
    state_name: str = "initial_state",
) -> None:
    """Raise ValueError where shapes, dtypes or devices do not fit together."""
    if q.dim() != 4:
        raise ValueError(f"q has shape {tuple(q.shape)}; it must be (B, T, Hq, K)")
    if v.dim() != 4:
        raise ValueError(f"v has shape {tuple(v.shape)}; it must be (B, T, H, V)")
    batch, steps, key_heads, key_dim = q.shape
    heads, value_dim = v.shape[2:]
    keys, values = (batch, steps, heads, key_dim), (batch, steps, heads, value_dim)
    _check_shape("k", k, tuple(q.shape), "(B, T, Hq, K), as q")
    _check_shape("v", v, values, "(B, T, H, V), with q's B and T")
    if heads != key_heads and (key_heads == 0 or heads % key_heads != 0):
        raise ValueError(
            f"v has {heads} heads and q has {key_heads}; the heads of v must be a multiple of "
            "those of q and k (each of which then serves a run of neighbouring heads of v)"
        )
    for name, tensor in (("q", q), ("k", k)):
        if tensor.dtype != v.dtype:
            raise ValueError(f"{name} is {tensor.dtype} and v is {v.dtype}; q, k and v must agree")
    if not v.dtype.is_floating_point:
        raise ValueError(f"q, k and v are {v.dtype}; they must be floating point")
    gate_dtype = None
    for name, gate, shape, text in (
        ("gate_k", gate_k, keys, "(B, T, H, K) with v's H: it scales rows of the state"),
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
    sequences = batch if cu_seqlens is None else _sequences(cu_seqlens, batch)
    if initial_state is not None:
        shape = (sequences, heads, key_dim, value_dim)
        _check_shape(state_name, initial_state, shape, "(N, H, K, V), N sequences")
        expected = state_dtype(v)
        if initial_state.dtype != expected:
            raise ValueError(f"{state_name} is {initial_state.dtype}; it must be {expected}")
    for name, other in (
        ("q", q), ("k", k), ("gate_k", gate_k), ("gate_v", gate_v), ("gate_head", gate_head),
        (state_name, initial_state), ("cu_seqlens", cu_seqlens),
    ):  # fmt: skip
        if other is not None and other.device != v.device:
            raise ValueError(f"{name} is on {other.device} and v on {v.device}; move one of them")


def state_dtype(v: Tensor) -> torch.dtype:
    """The dtype of states: float32, or float64 for float64 inputs."""
    return torch.float64 if v.dtype == torch.float64 else torch.float32


def check_bounds(bounds: list[int], tokens: int) -> None:
    """Raise ValueError where the values of ``cu_seqlens`` do not cut ``tokens`` into sequences."""
    ordered = all(a <= b for a, b in itertools.pairwise(bounds))
    if not ordered or bounds[0] != 0 or bounds[-1] != tokens:
        raise ValueError(
            f"cu_seqlens is {bounds if len(bounds) <= 12 else f'{bounds[:12]} ...'}; it must rise "
            f"from 0 to T = {tokens}: the first token of each sequence, and the end"
        )


def check_writable(state: Tensor) -> None:
    """Raise ValueError where elements of ``state`` share memory, so that it cannot be updated."""
    if any(n > 1 and s == 0 for n, s in zip(state.shape, state.stride(), strict=True)):
        raise ValueError(
            f"state has strides {state.stride()}: elements of an expanded tensor share memory and "
            "cannot be updated; give state.contiguous()"
        )


def _sequences(cu_seqlens: Tensor, batch: int) -> int:
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0:
        raise ValueError(
            f"cu_seqlens has shape {tuple(cu_seqlens.shape)}; it must be (N + 1,): the first token "
            "of each of N sequences, and the end"
        )
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"cu_seqlens is {cu_seqlens.dtype}; it must be torch.int32 or torch.int64")
    if batch != 1:
        raise ValueError(
            f"with cu_seqlens all sequences lie in one row: B must be 1, not {batch}; give "
            "q.flatten(0, 1).unsqueeze(0), and so on"
        )
    return cu_seqlens.shape[0] - 1


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], text: str) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}, {text}")
