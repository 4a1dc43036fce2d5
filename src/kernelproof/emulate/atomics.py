"""Atomic read-modify-write over many threads: the order is that of the threads' numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernelproof.emulate import numeric as N
from kernelproof.emulate.memory.access import Access
from kernelproof.emulate.memory.space import Space

Array = Any


def apply_atomic(m: Access, space: Space, index: Array, b: Array, c: Array | None) -> Array:
    """Apply; returns the old value that each thread saw. ``index``: byte positions."""
    view = space.view(m.dtype)
    at = index >> (np.dtype(m.dtype).itemsize.bit_length() - 1)
    plain = m.ty in ("u32", "s32", "u64", "s64", "f32", "f64", "b32", "b64")
    simple = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
              "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
    if not m.returns and plain and m.what in simple:
        simple[m.what].at(view, at, b)
        return np.zeros(len(at), m.dtype)
    order = np.argsort(at, kind="stable")
    ordered = at[order]
    fresh = np.ones(len(at), bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    starts = np.maximum.accumulate(np.where(fresh, np.arange(len(at)), 0))
    rank = np.empty(len(at), np.int64)
    rank[order] = np.arange(len(at)) - starts
    out = np.zeros(len(at), m.dtype)
    if m.what == "add" and m.ty in ("u32", "s32", "u64", "s64"):
        sums = np.cumsum(b[order], dtype=b.dtype) - b[order]
        first = view[ordered] + (sums - sums[starts])
        out[order] = first
        np.add.at(view, at, b)
        return out
    for turn in range(int(rank.max()) + 1):
        mine = rank == turn
        old = view[at[mine]]
        out[mine] = old
        view[at[mine]] = _combined(m, old, b[mine], c[mine] if c is not None else None)
    return out


def _combined(m: Access, old: Array, b: Array, c: Array | None) -> Array:
    what, ty = m.what, m.ty
    if what == "cas":
        bits = f"u{old.dtype.itemsize}"
        return np.where(old.view(bits) == b.view(bits), c, old)
    if what == "exch":
        return b
    if what == "inc":
        return np.where(old >= b, old.dtype.type(0), old + old.dtype.type(1))
    if what == "dec":
        return np.where((old == 0) | (old > b), b, old - old.dtype.type(1))
    if what in ("and", "or", "xor"):
        return {"and": old & b, "or": old | b, "xor": old ^ b}[what]
    if ty in ("f16x2", "bf16x2"):
        kind = np.float16 if ty == "f16x2" else np.uint16
        x, y = N.halves(old, kind), N.halves(b, kind)
        if ty == "bf16x2":
            return N.packed(N.to_bf16(_arithmetic(what, N.from_bf16(x), N.from_bf16(y))), False)
        return N.packed(_arithmetic(what, x, y), False)
    if ty == "bf16":
        return N.to_bf16(_arithmetic(what, N.from_bf16(old), N.from_bf16(b)))
    return _arithmetic(what, old, b)


def _arithmetic(what: str, x: Array, y: Array) -> Array:
    if what == "add":
        return x + y
    if x.dtype.kind == "f":
        return N.minimum(x, y) if what == "min" else N.maximum(x, y)
    return np.minimum(x, y) if what == "min" else np.maximum(x, y)
