"""Gated linear attention over packed sequences, with states carried in a pool (serving form).

Sequence n is the tokens ``cu_seqlens[n] .. cu_seqlens[n + 1] - 1``. Its state (H, K, V) starts at
zero where ``fresh[n]``, else at ``pool[slots[n]]``, and for each of its tokens

    state[h, i, j] = gate[t, h, i] * state[h, i, j] + k[t, h, i] * v[t, h, j]
    y[t, h, j]     = sum_i q[t, h, i] * state[h, i, j]

``q``, ``k``, ``gate`` are (T, H, K), ``v`` is (T, H, V), ``pool`` is (P, H, K, V) in fp32,
``cu_seqlens`` (N + 1,) and ``slots`` (N,) are int64, ``fresh`` (N,) is bool. The result is
``(y, states)``: (T, H, V) in the dtype of ``v``, and the last state of each sequence (N, H, K, V)
in fp32. The pool itself is left alone.

Traps for kernel writers:

- The slot of a fresh sequence holds what its last owner left, NaN included: ``fresh * state`` lets
  it through (the case ``stale_states``). One-token sequences take another path in many kernels.
- A sequence without tokens has a last state: the one that it started with.
- The last state of a sequence whose length is no multiple of the chunk: padded tokens need a gate
  of 1 and k of 0. A padded gate of 0 is right in ``y`` and wrong in ``states``.
- Chunks must not run over the border between two sequences.
- The gate acts on the key axis, and is a plain multiplier: 0 and negative are legal.
- States stay in fp32 in a 16-bit case, between chunks as well.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, q, k, v, gate, cu_seqlens, pool, slots, fresh):
        q, k, wide, gate = q.float(), k.float(), v.float(), gate.float()
        y, states = torch.zeros_like(wide), torch.zeros_like(pool[slots])
        bounds = cu_seqlens.tolist()
        for n in range(len(bounds) - 1):
            state = torch.zeros_like(pool[0]) if bool(fresh[n]) else pool[slots[n]]
            for t in range(bounds[n], bounds[n + 1]):
                state = gate[t].unsqueeze(-1) * state + k[t].unsqueeze(-1) * wide[t].unsqueeze(-2)
                y[t] = (q[t].unsqueeze(-1) * state).sum(dim=-2)
            states[n] = state
        return y.to(v.dtype), states


def get_inputs(
    lengths=(7, 0, 21, 1),
    heads=2,
    key_dim=12,
    value_dim=20,
    fresh=(0,),
    stale=2.0,
    dtype=torch.float32,
):
    """``fresh``: the sequences that start at zero; their slots are filled with ``stale``."""
    tokens, count = sum(lengths), len(lengths)
    q, k, x = (torch.randn(tokens, heads, key_dim) for _ in range(3))
    v = torch.randn(tokens, heads, value_dim)
    cu_seqlens = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    pool = torch.randn(count + 3, heads, key_dim, value_dim)
    slots = torch.randperm(count + 3)[:count]
    starts = torch.zeros(count, dtype=torch.bool)
    starts[list(fresh)] = True
    pool[slots[starts]] = stale
    packed = [t.to(dtype) for t in (q, k, v, torch.tanh(x + 1))]
    return [*packed, cu_seqlens, pool, slots, starts]


CASES = {
    "default": {},
    "one_token": {"lengths": (1,), "heads": 1, "key_dim": 1, "value_dim": 1, "fresh": ()},
    "all_empty": {"lengths": (0, 0, 0), "fresh": (1,)},
    "empty_between": {"lengths": (0, 1, 0, 1), "fresh": (1, 2)},
    "empty_at_both_ends": {"lengths": (0, 12, 8, 0)},
    "equal_lengths": {"lengths": (16, 16, 16), "fresh": (0, 1, 2)},
    "tail_of_one": {"lengths": (33,), "heads": 1, "key_dim": 17},
    "carried_states": {"lengths": (32, 32), "fresh": (), "value_dim": 9},
    "stale_states": {"lengths": (1, 1, 2, 1), "fresh": (0, 1, 2, 3), "stale": float("nan")},
    "many_sequences": {"lengths": (1,) * 70, "heads": 1, "key_dim": 3, "value_dim": 5},
    "carried_states_bf16": {"lengths": (32, 32), "fresh": (), "dtype": torch.bfloat16},
    "wide_state_bf16": {
        "lengths": (3,),
        "heads": 1,
        "key_dim": 192,
        "value_dim": 384,
        "dtype": torch.bfloat16,
    },
}


def _matrix_products(q, k, v, gate, cu_seqlens, pool, slots, fresh):
    """All sequences at once, step by step, the finished ones masked."""
    q, k, wide, gate = q.float(), k.float(), v.float(), gate.float()
    state = torch.where(fresh.view(-1, 1, 1, 1), 0.0, pool[slots])
    starts, lengths = cu_seqlens[:-1], cu_seqlens.diff()
    y = torch.zeros_like(wide)
    for step in range(int(lengths.max()) if lengths.numel() else 0):
        live = step < lengths
        t = starts[live] + step
        moved = gate[t].unsqueeze(-1) * state[live] + k[t].unsqueeze(-1) * wide[t].unsqueeze(-2)
        state[live] = moved
        y[t] = (q[t].unsqueeze(-2) @ moved).squeeze(-2)
    return y.to(v.dtype), state


BASELINES = {"all sequences at once": _matrix_products}


def _stale(q, k, v, gate, cu_seqlens, pool, slots, fresh):
    return Model()(q, k, v, gate, cu_seqlens, pool, slots, torch.zeros_like(fresh))


MISTAKES = {"a fresh sequence starts at what its slot holds, not at zero": _stale}


def FLOPS(lengths=(7, 0, 21, 1), heads=2, key_dim=12, value_dim=20):
    return 5 * sum(lengths) * heads * key_dim * value_dim


def BYTES(lengths=(7, 0, 21, 1), heads=2, key_dim=12, value_dim=20, dtype=torch.float32):
    states = 2 * len(lengths) * heads * key_dim * value_dim * 4
    return sum(lengths) * heads * (3 * key_dim + 2 * value_dim) * dtype.itemsize + states
