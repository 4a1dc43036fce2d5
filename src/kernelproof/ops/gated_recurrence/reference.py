"""The gated recurrence in plain PyTorch: any floating dtype, any device, with gradients."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kernelproof.ops.gated_recurrence.checks import check_bounds, state_dtype


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    log_gates: bool = False,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``y (B, T, H, V)`` in v's dtype and the last state ``(N, H, K, V)``.

    The state is float32, or float64 for float64 inputs; every step is computed in that dtype.
    """
    dtype = state_dtype(v)
    group = v.shape[2] // q.shape[2] if q.shape[2] else 1
    q, k = (x.to(dtype).repeat_interleave(group, dim=2) for x in (q, k))
    gates = [None if gate is None else gate.to(dtype) for gate in (gate_k, gate_v, gate_head)]
    if log_gates:
        gates = [None if gate is None else gate.exp() for gate in gates]
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = initial_state
    if state is None:
        state = v.new_zeros((sequences, v.shape[2], q.shape[3], v.shape[3]), dtype=dtype)
    if cu_seqlens is None:
        y, last = _sequence(q, k, v.to(dtype), gates, scale, state.clone())
        return y.to(v.dtype), last
    bounds = cu_seqlens.tolist()
    check_bounds(bounds, q.shape[1])
    ys, states = [v.new_zeros((1, 0, *v.shape[2:]), dtype=dtype)], [state[:0]]
    for n, (first, end) in enumerate(itertools.pairwise(bounds)):
        part = slice(first, end)
        y, last = _sequence(
            q[:, part], k[:, part], v[:, part].to(dtype),
            [None if gate is None else gate[:, part] for gate in gates], scale, state[n : n + 1],
        )  # fmt: skip
        ys.append(y)
        states.append(last)
    return torch.cat(ys, dim=1).to(v.dtype), torch.cat(states)


def _sequence(
    q: Tensor, k: Tensor, v: Tensor, gates: list[Tensor | None], scale: float, state: Tensor
) -> tuple[Tensor, Tensor]:
    gate_k, gate_v, gate_head = gates
    outputs = []
    for t in range(q.shape[1]):
        if gate_k is not None:
            state = gate_k[:, t].unsqueeze(-1) * state
        if gate_v is not None:
            state = gate_v[:, t].unsqueeze(-2) * state
        if gate_head is not None:
            state = gate_head[:, t][..., None, None] * state
        state = state + k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2) * scale)
    return (torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)), state
