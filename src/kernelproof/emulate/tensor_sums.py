"""Sums of products as the tensor cores of an H200 make them.

All products of one instruction and the accumulator are added at once: each is cut, towards zero, to
a multiple of 2^(e - 25), where e is the largest sum of the exponents of two factors, or the
accumulator's; a subnormal has the exponent of its type's smallest normal. What comes out is cut to
fp32, or rounded to the nearest fp16. For 8-bit floats it is 2^(e - 13), and 13 bits behind the
point of an fp32 result. Found by comparison: with these rules every element of the micro-tests of
real numbers has the bits that the H200 gave (docs/emulate.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any
_FRACTION = {"e4m3": 13, "e5m2": 13}
# Exponents of the smallest normal numbers.
_LEAST = {"f16": -14, "e4m3": -6, "e5m2": -14}
_NOTHING = -5000  # the exponent of a zero
_AT_ONCE = 1 << 17  # products in one array, so that they stay in the cache


def summed(
    left: Array, right: Array, carried: Array, kinds: tuple[str, str], out: str = "f32"
) -> Array:
    """left @ right + carried, as float64 that ``out`` (f32 or f16) holds.

    Args:
        left, right, carried: (n, m, k), (n, k, columns) and (n, m, columns), float64.
        kinds: of the factors: f16, bf16, tf32, e4m3 or e5m2.
    """
    each = max(1, _AT_ONCE // max(1, left[0].size * right.shape[2]))
    parts = [
        _summed(left[n : n + each], right[n : n + each], carried[n : n + each], kinds, out)
        for n in range(0, len(left), each)
    ]
    return np.concatenate(parts)


def _summed(left: Array, right: Array, carried: Array, kinds: tuple[str, str], out: str) -> Array:
    fraction = _FRACTION.get(kinds[0], 25)
    columns = np.ascontiguousarray(right.transpose(0, 2, 1))
    products = left[:, :, None] * columns[:, None]
    a, b = (_exponent(x, kind) for x, kind in zip((left, columns), kinds, strict=True))
    exponents = a[:, :, None] + b[:, None]
    top = np.maximum(exponents.max(axis=3), _exponent(carried, out))
    top = np.maximum(top, -1000 + fraction)
    scale, unit = np.ldexp(1.0, fraction - top), np.ldexp(1.0, top - fraction)
    products *= scale[..., None]
    np.trunc(products, out=products)
    total = (products.sum(axis=3) + np.trunc(carried * scale)) * unit
    if out == "f32":
        total = _cut(total, _FRACTION.get(kinds[0], 23))
    else:
        total = total.astype(np.float16).astype(np.float64)
    if np.isfinite(total).all():
        return total
    # Infinities and NaN, of which no cut is made.
    plain = np.matmul(left, right) + carried
    return np.where(np.isfinite(plain), total, plain)


def _exponent(x: Array, kind: str) -> Array:
    return np.where(x != 0, np.maximum(np.frexp(x)[1] - 1, _LEAST.get(kind, -126)), _NOTHING)


def _cut(x: Array, fraction: int) -> Array:
    """Towards zero to so many bits behind the point, fewer for what is subnormal in fp32."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -126)
    return np.ldexp(np.trunc(np.ldexp(x, fraction - exponent)), exponent - fraction)
