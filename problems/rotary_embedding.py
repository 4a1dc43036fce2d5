"""Rotary position embedding of queries and keys (half-split form, two outputs).

    angle[t, i] = positions[t] / base^(2 i / D)                       i < D / 2
    y[.., i]         = x[.., i] cos(angle) - x[.., i + D/2] sin(angle)
    y[.., i + D/2]   = x[.., i + D/2] cos(angle) + x[.., i] sin(angle)

``q`` is (B, S, H, D), ``k`` is (B, S, G, D) with fewer heads, ``positions`` (S,) is int64, need not
start at zero, and starts anew where sequences are packed (the case ``packed``).

Traps for kernel writers:

- Pairs are (i, i + D/2). The interleaved form pairs (2 i, 2 i + 1): same cost, another function.
- The angle reaches the position itself, and fp32 keeps 24 bits of it: at position 4000 the
  reference itself is 1e-4 away from the exact rotation. ``__sinf`` and ``__cosf`` are far worse
  there.
- ``base^(-2 i / D)`` by ``powf`` or ``exp2f(i * log2(base))`` differs in the last bits, and the
  position multiplies that difference.
- q and k have different head counts.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, base: float = 10000.0):
        super().__init__()
        self.base = base

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dim = q.shape[-1]
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=q.device) / dim
        angle = positions.float().unsqueeze(-1) * (1.0 / self.base**exponent)
        cos = angle.cos().unsqueeze(1)
        sin = angle.sin().unsqueeze(1)
        return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x, cos, sin):
    low, high = x.float().chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def get_inputs(
    batch=2, length=30, heads=4, kv_heads=2, dim=32, start=0, second=0, dtype=torch.float32
):
    """``second``: where a second sequence begins."""
    q = torch.randn(batch, length, heads, dim).to(dtype)
    k = torch.randn(batch, length, kv_heads, dim).to(dtype)
    positions = torch.arange(start, start + length)
    positions[second:] -= second
    return [q, k, positions]


CASES = {
    "default": {},
    "first_token": {"batch": 3, "length": 1, "heads": 3, "kv_heads": 1, "start": 1},
    "two_features": {"batch": 1, "length": 17, "heads": 1, "kv_heads": 1, "dim": 2},
    "odd_half": {"batch": 2, "length": 33, "heads": 5, "kv_heads": 5, "dim": 6, "start": 7},
    "packed": {"length": 19, "start": 3, "second": 8},
    "far": {"batch": 1, "length": 9, "start": 4000},
    "large": {"batch": 4, "length": 200, "heads": 8, "kv_heads": 2, "dim": 64},
    "bf16": {"dtype": torch.bfloat16},
}
# Far positions: see the second trap.
TOLERANCE = {"atol": 1e-3, "rtol": 1e-3}


def _complex_product(q, k, positions, base=10000.0):
    dim = q.shape[-1]
    exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=q.device) / dim
    angle = positions.float().unsqueeze(-1) * (1.0 / base**exponent)
    turn = torch.polar(torch.ones_like(angle), angle).unsqueeze(1)

    def rotate(x):
        low, high = x.float().chunk(2, dim=-1)
        turned = torch.complex(low.contiguous(), high.contiguous()) * turn
        return torch.cat((turned.real, turned.imag), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


BASELINES = {"complex product": _complex_product}


def FLOPS(batch=2, length=30, heads=4, kv_heads=2, dim=32, start=0, dtype=torch.float32):
    return 3 * batch * length * (heads + kv_heads) * dim


def BYTES(batch=2, length=30, heads=4, kv_heads=2, dim=32, start=0, dtype=torch.float32):
    return 2 * batch * length * (heads + kv_heads) * dim * dtype.itemsize + 8 * length
