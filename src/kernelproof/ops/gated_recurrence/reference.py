"""The gated recurrence in plain PyTorch: any floating dtype, any device, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gate_k: Tensor | None = None,
    gate_v: Tensor | None = None,
    gate_head: Tensor | None = None,
    scale: float = 1.0,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``y (B, T, H, V)`` in v's dtype and the last state ``(B, H, K, V)``.

    The state is float32, or float64 for float64 inputs; every step is computed in that dtype.
    """
    dtype = torch.float64 if v.dtype == torch.float64 else torch.float32
    batch, steps, heads, key_dim = q.shape
    if initial_state is None:
        state = torch.zeros(batch, heads, key_dim, v.shape[-1], dtype=dtype, device=v.device)
    else:
        state = initial_state.to(dtype).clone()
    outputs = []
    for t in range(steps):
        if gate_k is not None:
            state = gate_k[:, t].to(dtype).unsqueeze(-1) * state
        if gate_v is not None:
            state = gate_v[:, t].to(dtype).unsqueeze(-2) * state
        if gate_head is not None:
            state = gate_head[:, t].to(dtype)[..., None, None] * state
        state = state + k[:, t].to(dtype).unsqueeze(-1) * v[:, t].to(dtype).unsqueeze(-2)
        outputs.append((q[:, t].to(dtype).unsqueeze(-1) * state).sum(dim=-2) * scale)
    if not outputs:
        return torch.zeros_like(v), state
    return torch.stack(outputs, dim=1).to(v.dtype), state
