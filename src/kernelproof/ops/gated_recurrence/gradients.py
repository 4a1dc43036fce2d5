"""From the sums that the backward kernels form to the gradients of the arguments."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Sums(NamedTuple):
    """What a backward kernel returns, float32 (float64 for float64 inputs), per head of v.

    With D_t the gradient by the state after step t: ``by_row[i] = sum_j S_{t-1}[i, j] D_t[i, j]
    gate_v[j]`` and ``by_column[j] = sum_i S_{t-1}[i, j] D_t[i, j] gate_k[i]``, where a gate that is
    not given is 1.
    """

    q: Tensor  # (B, T, H, K)
    k: Tensor  # (B, T, H, K)
    v: Tensor  # (B, T, H, V)
    by_row: Tensor | None  # (B, T, H, K), with gate_k or gate_head
    by_column: Tensor | None  # (B, T, H, V), with gate_v
    initial: Tensor | None  # (N, H, K, V), with an initial state


def from_sums(
    sums: Sums,
    q: Tensor,
    v: Tensor,
    gate_k: Tensor | None,
    gate_v: Tensor | None,
    gate_head: Tensor | None,
    log_gates: bool,
) -> list[Tensor | None]:
    """Gradients of q, k, v, gate_k, gate_v, gate_head and the initial state, in their dtypes; None
    for what is not given.

    By the logarithm of a gate the gradient is the gate times that by the gate.
    """
    batch, steps, heads, key_dim = q.shape
    grouped = (batch, steps, heads, v.shape[2] // heads if heads else 1, key_dim)
    dtype = sums.v.dtype

    def value(gate: Tensor) -> Tensor:
        return gate.to(dtype).exp() if log_gates else gate.to(dtype)

    def by(gate: Tensor, gradient: Tensor) -> Tensor:
        return (gradient * value(gate) if log_gates else gradient).to(gate.dtype)

    out: list[Tensor | None] = [sums.q, sums.k]
    if heads != v.shape[2]:
        out = [x.view(grouped).sum(3) for x in (sums.q, sums.k)]
    out = [None if x is None else x.to(q.dtype) for x in [*out, sums.v]]
    head = None if gate_head is None else value(gate_head).unsqueeze(-1)
    for gate, sum_ in ((gate_k, sums.by_row), (gate_v, sums.by_column)):
        if gate is None or sum_ is None:
            out.append(None)
        else:
            out.append(by(gate, sum_ if head is None else sum_ * head))
    if gate_head is None or sums.by_row is None:
        out.append(None)
    else:
        rows = sums.by_row if gate_k is None else sums.by_row * value(gate_k)
        out.append(by(gate_head, rows.sum(-1)))
    out.append(sums.initial)
    return out


def wanted(gate_k: Tensor | None, gate_v: Tensor | None, gate_head: Tensor | None) -> list[bool]:
    """Whether ``by_row`` and ``by_column`` are needed."""
    return [gate_k is not None or gate_head is not None, gate_v is not None]
