"""8-bit floats: e4m3 and e5m2 (OCP 8-bit floating point specification, 5.1)."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = Any
# Bits of the fraction, bias, and the largest finite pattern.
_FORMS = {"e4m3": (3, 7, 0x7E), "e5m2": (2, 15, 0x7B)}
_NAN = 0x7F


@functools.cache
def values(kind: str) -> Array:
    """What each of the 256 patterns means, as float64."""
    fraction, bias, largest = _FORMS[kind]
    bits = np.arange(256)
    exponent, low = (bits & 127) >> fraction, bits & ((1 << fraction) - 1)
    value = np.where(
        exponent > 0,
        (1 + low / 2**fraction) * 2.0 ** (exponent - bias),
        low / 2**fraction * 2.0 ** (1 - bias),
    )
    value[(bits & 127) > largest] = np.nan
    if kind == "e5m2":
        value[(bits & 127) == largest + 1] = np.inf
    return np.where(bits & 128, -value, value)


@functools.cache
def halves(kind: str) -> Array:
    """The fp16 pattern of each of the 256, exact; NaN is 0x7FFF as on an H200."""
    exact = values(kind)
    return np.where(np.isnan(exact), np.uint16(0x7FFF), exact.astype(np.float16).view(np.uint16))


def rounded(x: Array, kind: str) -> Array:
    """The nearest patterns, ties to even; what is too large becomes the largest (.satfinite)."""
    largest = _FORMS[kind][2]
    steps = values(kind)[: largest + 1]
    middle = (steps[1:] + steps[:-1]) / 2
    wide = np.abs(x.astype(np.float64))
    code = np.searchsorted(middle, wide, side="left")
    code += (code < largest) & (code & 1 == 1) & (wide == middle[np.minimum(code, largest - 1)])
    code = np.where(np.isnan(x), _NAN, code)
    return (code | np.signbit(x) * np.int64(128) * ~np.isnan(x)).astype(np.uint8)
