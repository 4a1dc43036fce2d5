"""Gated linear-attention recurrence, the gate on the value axis: the plain eager form.

For every batch and head a matrix ``state (key_dim, value_dim)`` starts at zero, and at each step

    state[i, j] = gate[j] * state[i, j] + k[i] * v[j]
    y[j]        = sum_i q[i] * state[i, j]

The gate is a plain multiplier: 0, negative and > 1 are legal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """``q, k (B, S, H, K)``, ``v, gate (B, S, H, V)`` to ``y (B, S, H, V)``."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
        batch, steps, heads, key_dim = q.shape
        state = q.new_zeros(batch, heads, key_dim, v.shape[-1])
        outputs = []
        for t in range(steps):
            gate_t = gate[:, t].unsqueeze(-2)  # (B, H, 1, V): scales columns of the state
            kv_outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
            state = gate_t * state + kv_outer
            outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
        return torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)


def get_inputs(
    batch: int = 2,
    steps: int = 128,
    heads: int = 4,
    key_dim: int = 24,
    value_dim: int = 24,
    gates: str = "sigmoid",
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    silent: bool = False,
) -> list[Tensor]:
    """``[q, k, v, gate]``; ``gates`` names the family that the gate is drawn from.

    ``layout``: "contiguous"; "columns", where q, k and v are columns of one fused projection; or
    "expanded", where all values of a head share a gate of stride 0. ``silent``: k and v of every
    third step are zero, as a padding mask leaves them, while the gate there goes on decaying.
    """
    q = torch.randn(batch, steps, heads, key_dim, dtype=dtype)
    k = torch.randn(batch, steps, heads, key_dim, dtype=dtype)
    v = torch.randn(batch, steps, heads, value_dim, dtype=dtype)
    x = torch.randn(batch, steps, heads, value_dim, dtype=dtype)
    if silent:
        k[:, 1::3] = 0
        v[:, 1::3] = 0
    if layout == "columns":
        q, k, v = as_columns(q, k, v)
    elif layout == "expanded":
        x = x[..., :1]
    return [q, k, v, GATES[gates](x).expand(v.shape)]


def as_columns(*parts: Tensor) -> list[Tensor]:
    """The same values as views of one ``(B, S, columns)`` tensor, which has no copy of them."""
    fused = torch.cat([part.flatten(2) for part in parts], dim=-1)
    widths = [part.shape[2] * part.shape[3] for part in parts]
    views = zip(fused.split(widths, dim=-1), parts, strict=True)
    return [columns.unflatten(-1, part.shape[2:]) for columns, part in views]


def get_init_inputs() -> list[Any]:
    return []


GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "slow": lambda x: 1 - 0.02 * torch.sigmoid(x),
    "fast": lambda x: 0.001 + 0.1 * torch.sigmoid(x),
    "zeros": lambda x: torch.sigmoid(x) * (x > -1.6),  # about 5 % exact zeros
    "signed": torch.tanh,
    "above_one": lambda x: 0.6 + torch.sigmoid(x),
    # Nothing before the last step may depend on its gate, through a rescaling either.
    "huge_last": lambda x: torch.cat((torch.sigmoid(x[:, :-1]), 1e30 + 0 * x[:, -1:]), dim=1),
}

# fmt: off
CASES: dict[str, dict[str, Any]] = {
    "founding": {},
    "one_of_each": {"batch": 1, "steps": 1, "heads": 1, "key_dim": 1, "value_dim": 1},
    "no_steps": {"steps": 0},
    "no_batch": {"batch": 0, "steps": 5},
    "one_step": {"batch": 3, "steps": 1, "heads": 2, "key_dim": 40, "value_dim": 33},
    "odd_sizes": {"batch": 1, "steps": 37, "heads": 3, "key_dim": 19, "value_dim": 29},
    "past_one_chunk": {"batch": 1, "steps": 129, "heads": 2, "key_dim": 24, "value_dim": 24},
    "slow_decay": {"batch": 1, "steps": 200, "heads": 2, "key_dim": 32, "gates": "slow"},
    "fast_decay": {"batch": 1, "steps": 128, "heads": 2, "gates": "fast"},
    "zero_gates": {"batch": 1, "steps": 100, "heads": 2, "key_dim": 7, "gates": "zeros"},
    "signed_gates": {"batch": 1, "steps": 90, "heads": 2, "value_dim": 5, "gates": "signed"},
    "gates_above_one": {"batch": 2, "steps": 33, "heads": 1, "key_dim": 16, "gates": "above_one"},
    "below_one_tile": {"steps": 7, "heads": 16, "key_dim": 8, "value_dim": 8},
    "two_steps": {"steps": 2, "heads": 1},
    "one_chunk": {"batch": 1, "steps": 64, "heads": 1, "key_dim": 48, "value_dim": 16},
    "two_key_tiles": {"batch": 1, "steps": 19, "heads": 1, "key_dim": 128, "value_dim": 17},
    "wide_head": {"batch": 1, "steps": 2, "heads": 1, "key_dim": 256, "value_dim": 256},
    "large_batch": {"batch": 8, "steps": 3, "heads": 16, "key_dim": 9, "value_dim": 72},
    "many_heads": {"batch": 65_600, "steps": 1, "heads": 1, "key_dim": 1, "value_dim": 1},
    "huge_last_gate": {"batch": 1, "steps": 35, "heads": 2, "gates": "huge_last"},
    "silent_steps": {"batch": 1, "steps": 39, "heads": 2, "value_dim": 21, "silent": True},
    "fused_columns": {"batch": 2, "steps": 21, "heads": 3, "value_dim": 20, "layout": "columns"},
    "expanded_gate": {"batch": 2, "steps": 18, "heads": 2, "layout": "expanded"},
    "wide_state": {"batch": 1, "steps": 2, "heads": 1, "key_dim": 192, "value_dim": 384},
    "larger": {"batch": 1, "steps": 160, "heads": 1, "key_dim": 64, "value_dim": 80},
}
# fmt: on
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}


def _unbound(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """The same loop with everything that does not depend on the state taken out of it."""
    if q.shape[1] == 0:
        return torch.zeros_like(v)
    outer = (k.unsqueeze(-1) * v.unsqueeze(-2)).unbind(1)
    rows = q.unsqueeze(-2).unbind(1)
    state = torch.zeros_like(outer[0])
    outputs = []
    for row, update, gate_t in zip(rows, outer, gate.unsqueeze(-2).unbind(1), strict=True):
        state = torch.addcmul(update, gate_t, state)
        outputs.append(torch.matmul(row, state))
    return torch.stack(outputs, dim=1).squeeze(-2)


def _chunked(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, chunk: int = 16) -> Tensor:
    """Chunk-parallel form: within a chunk by products of gates, between chunks by the state.

    Only products of gates occur, so zero and negative gates are exact.
    """
    batch, steps, heads, value_dim = v.shape
    chunks = -(-steps // chunk)
    pad = (0, 0, 0, 0, 0, chunks * chunk - steps)

    def in_chunks(x: Tensor, fill: float = 0.0) -> Tensor:  # (B, H, chunks, chunk, D)
        padded: Tensor = nn.functional.pad(x, pad, value=fill)
        split: Tensor = padded.unflatten(1, (chunks, chunk))
        return split.permute(0, 3, 1, 2, 4)

    q, k, v, gate = in_chunks(q), in_chunks(k), in_chunks(v), in_chunks(gate, 1.0)
    # decay[t, s, j]: the product of the gates after s up to t; `since` counts from the start.
    decay = gate.new_zeros(batch, heads, chunks, chunk, chunk, value_dim)
    for t in range(chunk):
        if t:
            decay[..., t, :t, :] = decay[..., t - 1, :t, :] * gate[..., t, None, :]
        decay[..., t, t, :] = 1.0
    since = torch.cumprod(gate, dim=-2)
    scores = q @ k.transpose(-1, -2)
    y = torch.einsum("bhnts,bhntsj,bhnsj->bhntj", scores, decay, v)
    update = k.transpose(-1, -2) @ (v * decay[..., -1, :, :])
    state = update.new_zeros(update.shape[:2] + update.shape[3:])
    starts = []
    for n in range(chunks):
        starts.append(state)
        state = since[:, :, n, -1:, :] * state + update[:, :, n]
    if starts:
        y = y + since * (q @ torch.stack(starts, dim=2))
    result: Tensor = y.permute(0, 2, 3, 1, 4).flatten(1, 2)[:, :steps].contiguous()
    return result


BASELINES: dict[str, Callable[..., Tensor]] = {"unbound loop": _unbound, "chunked": _chunked}


def _gate_on_key_axis(q: Tensor, k: Tensor, v: Tensor, gate: Tensor) -> Tensor:
    """The usual gated linear attention, which is another function: gate[i] scales row i."""
    if q.shape[-1] > v.shape[-1]:
        return torch.empty(0)  # there is no gate for the last rows
    gate = gate[..., : q.shape[-1]]
    state = q.new_zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        kv_outer = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        state = gate[:, t].unsqueeze(-1) * state + kv_outer
        outputs.append((q[:, t].unsqueeze(-1) * state).sum(dim=-2))
    return torch.stack(outputs, dim=1) if outputs else torch.zeros_like(v)


MISTAKES: dict[str, Callable[..., Tensor]] = {
    "the gate acts on the key axis (gate[i] scales row i of the state); here it acts on the value "
    "axis: state[i, j] = gate[j] * state[i, j] + k[i] * v[j]": _gate_on_key_axis,
}


def FLOPS(
    batch: int = 2,
    steps: int = 128,
    heads: int = 4,
    key_dim: int = 24,
    value_dim: int = 24,
    **_: Any,
) -> int:
    """Per state element and step: gate, outer product, their sum, and two for the readout."""
    return 5 * batch * steps * heads * key_dim * value_dim


def BYTES(
    batch: int = 2,
    steps: int = 128,
    heads: int = 4,
    key_dim: int = 24,
    value_dim: int = 24,
    dtype: torch.dtype = torch.float32,
    **_: Any,
) -> int:
    """q, k, v, gate read once, y written once."""
    return batch * steps * heads * (2 * key_dim + 3 * value_dim) * dtype.itemsize
