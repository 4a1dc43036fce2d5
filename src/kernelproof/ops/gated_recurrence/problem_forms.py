"""Every form of the gated recurrence: key, value and head gates, grouped heads, logarithms of
gates, a carried state, packed sequences; with gradients.

For every head a matrix ``state (key_dim, value_dim)`` passes through the steps of a sequence:

    state[i, j] = g[i, j] * state[i, j] + k[i] * v[j]
    y[j]        = scale * sum_i q[i] * state[i, j]

where ``g[i, j]`` is the product of the gates given: ``gate_k[i]``, ``gate_v[j]``, ``gate_head``.

The constructor says which tensors follow q, k and v: the gates that ``gates`` names by letter ("k",
"v", "h", in this order), then the initial state ``(N, H, K, V)``, then ``cu_seqlens (N + 1,)``, the
first steps of N sequences that are packed into one row, and its end. ``log_gates``: gates come as
natural logarithms. ``returned``: the last state is the second output.

``q, k (B, T, Hq, K)``, ``v (B, T, H, V)``: head h of v goes with head ``h // (H // Hq)`` of q and
k. Gates have v's heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kernelproof.ops.gated_recurrence.problem import GATES, as_columns


class Model(nn.Module):
    """``q, k (B, T, Hq, K)``, ``v (B, T, H, V)`` and more to ``y (B, T, H, V)``."""

    def __init__(
        self,
        gates: str = "k",
        log_gates: bool = False,
        scale: float = 1.0,
        initial: bool = False,
        returned: bool = False,
        packed: bool = False,
    ) -> None:
        super().__init__()
        self.gates, self.log_gates, self.scale = gates, log_gates, scale
        self.initial, self.returned, self.packed = initial, returned, packed

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        left = list(rest)
        # Each gate as it multiplies a state (N, H, K, V).
        gates = [_AS_FACTOR[name](left.pop(0)) for name in self.gates]
        state = left.pop(0) if self.initial else None
        bounds = left.pop(0).tolist() if self.packed else None
        group = v.shape[2] // q.shape[2]
        q, k = (x.float().repeat_interleave(group, dim=2) for x in (q, k))
        wide = v.float()
        gates = [gate.float().exp() if self.log_gates else gate.float() for gate in gates]
        if state is None:
            count = q.shape[0] if bounds is None else len(bounds) - 1
            state = wide.new_zeros(count, v.shape[2], q.shape[3], v.shape[3])
        outputs, states = [], []
        for n in range(1 if bounds is None else len(bounds) - 1):
            first, end = (0, q.shape[1]) if bounds is None else bounds[n : n + 2]
            now = state if bounds is None else state[n : n + 1]
            for t in range(first, end):
                for gate in gates:
                    now = gate[:, t] * now
                now = now + k[:, t].unsqueeze(-1) * wide[:, t].unsqueeze(-2)
                outputs.append((q[:, t].unsqueeze(-1) * now).sum(dim=-2) * self.scale)
            states.append(now)
        y = (torch.stack(outputs, dim=1) if outputs else torch.zeros_like(wide)).to(v.dtype)
        last = torch.cat(states) if states else state
        return (y, last.clone()) if self.returned else y


_AS_FACTOR: dict[str, Callable[[Tensor], Tensor]] = {
    "k": lambda gate: gate.unsqueeze(-1),
    "v": lambda gate: gate.unsqueeze(-2),
    "h": lambda gate: gate[..., None, None],
}


def get_init_inputs(
    gates: str = "k",
    log_gates: bool = False,
    scale: float = 1.0,
    initial: bool = False,
    returned: bool = False,
    lengths: Sequence[int] | None = None,
) -> list[Any]:
    return [gates, log_gates, scale, initial, returned, lengths is not None]


def get_inputs(
    batch: int = 2,
    steps: int = 40,
    key_heads: int = 2,
    heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 24,
    gates: str = "k",
    family: str = "sigmoid",
    log_gates: bool = False,
    initial: bool = False,
    lengths: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    layout: str = "contiguous",
    silent: bool = False,
    **_: Any,
) -> list[Tensor]:
    """q, k, v and what the form has more. ``family`` names a family of ``problem.GATES``;
    ``lengths`` are those of packed sequences, instead of ``batch`` and ``steps``; ``layout`` is
    "contiguous" or "columns", q, k and v as columns of one tensor; ``silent``: k and v of every
    third step are zero, while the gates there go on decaying."""
    if lengths is not None:
        batch, steps = 1, sum(lengths)
    q, k = (torch.randn(batch, steps, key_heads, key_dim) for _ in range(2))
    v = torch.randn(batch, steps, heads, value_dim)
    if silent:
        k[:, 1::3] = 0
        v[:, 1::3] = 0
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if layout == "columns":
        q, k, v = as_columns(q, k, v)
    made = [q, k, v]
    for name in gates:
        shape = (batch, steps, heads, *{"k": (key_dim,), "v": (value_dim,), "h": ()}[name])
        gate = GATES[family](torch.randn(shape))
        made.append((gate.log() if log_gates else gate).to(dtype))
    if initial:
        count = batch if lengths is None else len(lengths)
        made.append(torch.randn(count, heads, key_dim, value_dim))
    if lengths is not None:
        made.append(torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0))
    return made


_CARRIED = {"initial": True, "returned": True}
# fmt: off
CASES: dict[str, dict[str, Any]] = {
    "everything": {
        "gates": "kvh", "steps": 70, "heads": 4, "key_dim": 40, "scale": 0.5, **_CARRIED,
    },
    "key_gate": {"steps": 130},
    "head_gate": {"gates": "h", "steps": 35, **_CARRIED},
    "no_gate": {"gates": "", "steps": 20, "key_dim": 5},
    "key_and_value": {"gates": "kv", "family": "signed", "key_dim": 33, "value_dim": 17},
    "zero_key_gates": {"family": "zeros", "steps": 100, "returned": True},
    "signed_head_gates": {"gates": "h", "family": "signed", "batch": 1},
    "key_gates_above_one": {"family": "above_one", "steps": 33, "batch": 1},
    "fast_key_decay": {"family": "fast", "steps": 128, "batch": 1, "heads": 4},
    "huge_last_key_gate": {"family": "huge_last", "steps": 35, "batch": 1},
    "silent_key_steps": {"steps": 39, "silent": True},
    "grouped_heads": {"key_heads": 1, "heads": 3, "value_dim": 9, "layout": "columns"},
    "log_gates": {"gates": "kh", "log_gates": True, "steps": 50},
    "log_of_zero": {"gates": "v", "log_gates": True, "family": "zeros", "steps": 20},
    "one_step": {"steps": 1, "batch": 3, **_CARRIED},
    "no_steps": {"steps": 0, **_CARRIED},
    "no_batch": {"batch": 0, "steps": 3, "gates": "kvh", **_CARRIED},
    "tail_of_one": {"steps": 33, "batch": 1, **_CARRIED},
    "one_of_each": {"batch": 1, "steps": 1, "key_heads": 1, "heads": 1, "key_dim": 1,
                    "value_dim": 1, "gates": "kvh"},
    "two_key_tiles": {"batch": 1, "steps": 19, "key_heads": 1, "heads": 1, "key_dim": 128},
    "packed": {"lengths": (7, 0, 21, 1), **_CARRIED},
    "packed_empty": {"lengths": (0, 0, 0), "gates": "h", **_CARRIED},
    "packed_equal": {"lengths": (16, 16, 16), "key_heads": 1, "gates": "kv"},
    "packed_many": {"lengths": (1,) * 70, "gates": "h", "key_dim": 3, "value_dim": 5},
    "packed_long": {"lengths": (130, 3), "heads": 2, "key_heads": 1, "returned": True},
    "bf16": {"dtype": torch.bfloat16, "steps": 64, **_CARRIED},
    "fp16_packed": {"dtype": torch.float16, "lengths": (40, 9), "gates": "kh", "heads": 4},
}
# fmt: on
TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
BACKWARD = True


def FLOPS(
    batch: int = 2,
    steps: int = 40,
    heads: int = 2,
    key_dim: int = 16,
    value_dim: int = 24,
    gates: str = "k",
    lengths: Sequence[int] | None = None,
    **_: Any,
) -> int:
    """Per state element and step: a product for each gate, the outer product, their sum, and two
    for the readout."""
    tokens = batch * steps if lengths is None else sum(lengths)
    return (4 + len(gates)) * tokens * heads * key_dim * value_dim
