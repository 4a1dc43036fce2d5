"""Arithmetic of PTX on numpy values, where numpy has no function of that meaning.

Values are arrays over threads or numpy scalars (the same for all threads). Formulas follow the PTX
ISA reference, section 9.7; where it leaves a result open, the comment says what is chosen here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Value = Any  # an array over threads, or a numpy scalar

_NAN16 = np.uint16(0x7FFF).view(np.float16)
_U32, _U64, _I64, _F32, _F64 = np.uint32, np.uint64, np.int64, np.float32, np.float64


# ---- integers


def shift_left(x: Value, n: Value) -> Value:
    """x << n; amounts of the width and more give 0. ``n`` is uint32."""
    bits = x.dtype.itemsize * 8
    return np.where(n < bits, x << np.minimum(n, bits - 1).astype(x.dtype), x.dtype.type(0))


def shift_right(x: Value, n: Value) -> Value:
    """x >> n; amounts of the width and more give 0, or the sign for signed x."""
    bits = x.dtype.itemsize * 8
    shifted = x >> np.minimum(n, bits - 1).astype(x.dtype)
    return shifted if x.dtype.kind == "i" else np.where(n < bits, shifted, x.dtype.type(0))


def divide(a: Value, b: Value) -> Value:
    """Integer quotient rounded towards zero. By zero: all bits set, as NVIDIA GPUs give."""
    zero = b == 0
    safe = np.where(zero, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        return np.where(zero, ~a.dtype.type(0), a // safe)
    quotient = a // safe
    quotient = quotient + ((a != quotient * safe) & ((a < 0) != (safe < 0)))
    return np.where(zero, a.dtype.type(-1), quotient).astype(a.dtype)


def remainder(a: Value, b: Value) -> Value:
    """The remainder that goes with `divide`. By zero the ISA leaves it open: all bits set, as an
    H200 gives for 32 bits."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, ~a.dtype.type(0), a - divide(a, safe) * safe)


def multiply_high(a: Value, b: Value) -> Value:
    """The upper half of the product, of 16, 32 or 64 bits."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = _I64 if a.dtype.kind == "i" else _U64
        return ((a.astype(wide) * b.astype(wide)) >> wide(bits)).astype(a.dtype)
    x, y = a.view(_U64), b.view(_U64)
    low, half = _U64(0xFFFFFFFF), _U64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, _U64(0)) - np.where(b < 0, x, _U64(0))
        return high.view(_I64)
    return high


def saturated_add(a: Value, b: Value, sign: int) -> Value:
    """Signed 32-bit sum or difference, clamped to the range."""
    total = a.astype(_I64) + sign * b.astype(_I64)
    return np.clip(total, -(1 << 31), (1 << 31) - 1).astype(np.int32)


def population_count(x: Value) -> Value:
    x = x.astype(_U64)
    x = x - ((x >> _U64(1)) & _U64(0x5555555555555555))
    x = (x & _U64(0x3333333333333333)) + ((x >> _U64(2)) & _U64(0x3333333333333333))
    x = (x + (x >> _U64(4))) & _U64(0x0F0F0F0F0F0F0F0F)
    return ((x * _U64(0x0101010101010101)) >> _U64(56)).astype(_U32)


def leading_zeros(x: Value) -> Value:
    bits = x.dtype.itemsize * 8
    x = x.astype(_U64)
    for shift in (1, 2, 4, 8, 16, 32):
        x = x | (x >> _U64(shift))
    return _U32(bits) - population_count(x)


def find_leading(x: Value, as_shift: bool) -> Value:
    """bfind: the position of the highest bit that differs from the sign; all ones for none."""
    bits = x.dtype.itemsize * 8
    if x.dtype.kind == "i":
        x = np.where(x < 0, ~x, x)
    x = x.view(f"u{x.dtype.itemsize}")
    zeros = leading_zeros(x)
    found = zeros if as_shift else _U32(bits - 1) - zeros
    return np.where(x == 0, _U32(0xFFFFFFFF), found)


def reverse_bits(x: Value) -> Value:
    bits = x.dtype.itemsize * 8
    out = x.dtype.type(0)
    for i in range(bits):
        out = out | (((x >> x.dtype.type(i)) & x.dtype.type(1)) << x.dtype.type(bits - 1 - i))
    return out


def extract_bits(x: Value, start: Value, length: Value) -> Value:
    """bfe: ``length`` bits from ``start`` on. Signed x continues upwards with its sign, also where
    the field reaches past its end, and the field's own last bit is extended."""
    bits = x.dtype.itemsize * 8
    unsigned = np.dtype(f"u{x.dtype.itemsize}").type
    start, length = np.minimum(start & 0xFF, bits), np.minimum(length & 0xFF, bits)
    mask = shift_left(unsigned(1), length) - unsigned(1)
    mask = np.where(length == bits, ~unsigned(0), mask)
    shifted = shift_right(x, start).view(unsigned)
    if x.dtype.kind == "u":
        return shifted & mask
    last = np.maximum(length.astype(_I64) - 1, 0).astype(unsigned)
    negative = (length > 0) & (((shifted >> last) & unsigned(1)) == 1)
    return np.where(negative, shifted | ~mask, shifted & mask).view(x.dtype)


def insert_bits(a: Value, b: Value, start: Value, length: Value) -> Value:
    """bfi: ``length`` bits of a replace those of b from ``start`` on."""
    bits = b.dtype.itemsize * 8
    one = b.dtype.type(1)
    start, length = start & _U32(0xFF), np.minimum(length & _U32(0xFF), bits)
    mask = np.where(length == bits, ~b.dtype.type(0), shift_left(one, length) - one)
    mask = shift_left(mask, start)
    return (b & ~mask) | (shift_left(a, start) & mask)


def permute_bytes(a: Value, b: Value, selector: Value, mode: str) -> Value:
    """prmt: four bytes of the eight in b:a."""
    both = a.astype(_U64) | (b.astype(_U64) << _U64(32))
    if mode:
        return _permute_mode(both, selector & _U32(3), mode)
    out = _U32(0)
    for i in range(4):
        nibble = (selector >> _U32(4 * i)) & _U32(15)
        byte = (both >> ((nibble & _U32(7)).astype(_U64) * _U64(8))).astype(_U32) & _U32(0xFF)
        sign = np.where(byte & _U32(0x80), _U32(0xFF), _U32(0))
        out = out | (np.where(nibble & _U32(8), sign, byte) << _U32(8 * i))
    return out


_PERMUTE = {
    "f4e": ("3210", "4321", "5432", "6543"), "b4e": ("5670", "6701", "7012", "0123"),
    "rc8": ("0000", "1111", "2222", "3333"), "ecl": ("3210", "3211", "3222", "3333"),
    "ecr": ("0000", "1110", "2210", "3210"), "rc16": ("1010", "3232", "1010", "3232"),
}  # fmt: skip


def _permute_mode(both: Value, selector: Value, mode: str) -> Value:
    out = _U32(0)
    for i in range(4):
        table = np.array([int(row[3 - i]) for row in _PERMUTE[mode]], _U64)
        byte = (both >> (table[selector.astype(np.intp)] * _U64(8))).astype(_U32) & _U32(0xFF)
        out = out | (byte << _U32(8 * i))
    return out


def logic3(a: Value, b: Value, c: Value, table: int) -> Value:
    """lop3: the function of three bits whose truth table is ``table``."""
    out = a ^ a
    for i in range(8):
        if table >> i & 1:
            x = a if i & 4 else ~a
            y = b if i & 2 else ~b
            z = c if i & 1 else ~c
            out = out | (x & y & z)
    return out


def funnel_shift(a: Value, b: Value, n: Value, left: bool, wrap: bool) -> Value:
    """shf: the upper (left) or lower half of b:a shifted by n; b holds the upper bits."""
    n = n & _U32(31) if wrap else np.minimum(n, _U32(32))
    both = a.astype(_U64) | (b.astype(_U64) << _U64(32))
    if left:
        return ((both << n.astype(_U64)) >> _U64(32)).astype(_U32)
    return (both >> n.astype(_U64)).astype(_U32)


def dot4(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool) -> Value:
    """dp4a: c plus the products of four bytes; the sum wraps."""
    total = c.astype(_I64)
    for i in range(4):
        x = (a >> _U32(8 * i)).astype(np.uint8)
        y = (b >> _U32(8 * i)).astype(np.uint8)
        x, y = (x.view(np.int8) if a_signed else x), (y.view(np.int8) if b_signed else y)
        total = total + x.astype(_I64) * y.astype(_I64)
    return total.astype(_U64).astype(_U32)


def dot2(a: Value, b: Value, c: Value, a_signed: bool, b_signed: bool, high: bool) -> Value:
    """dp2a: c plus the products of two halves of a and the lower or upper two bytes of b."""
    total = c.astype(_I64)
    for i in range(2):
        x = (a >> _U32(16 * i)).astype(np.uint16)
        y = (b >> _U32(8 * i + (16 if high else 0))).astype(np.uint8)
        x, y = (x.view(np.int16) if a_signed else x), (y.view(np.int8) if b_signed else y)
        total = total + x.astype(_I64) * y.astype(_I64)
    return total.astype(_U64).astype(_U32)


# ---- floating point


def flush(x: Value) -> Value:
    """Subnormal float32 become zero of their sign (.ftz)."""
    return np.where(np.abs(x) < np.finfo(_F32).tiny, np.copysign(_F32(0), x), x)


def saturate(x: Value) -> Value:
    """Clamped to [0, 1]; NaN becomes 0 (.sat)."""
    one = x.dtype.type(1)
    return np.where(np.isnan(x), x.dtype.type(0), np.minimum(np.maximum(x, x.dtype.type(0)), one))


def fma32(a: Value, b: Value, c: Value) -> Value:
    """a * b + c rounded once. The product of two float32 is exact in float64; what remains is the
    rare sum whose float64 rounding lies midway between two float32."""
    product = np.multiply(a, b, dtype=_F64)
    total = product + c
    ties = (total.view(_U64) & _U64(0x1FFFFFFF)) == _U64(0x10000000)
    if ties.any():
        total = np.where(ties, to_odd(total, _sum_error(product, c.astype(_F64), total)), total)
    return total.astype(_F32)


def fma64(a: Value, b: Value, c: Value) -> Value:
    """a * b + c in float64 with the product held in two parts (Dekker 1971): rounded once but for
    operands near the ends of the range."""
    product = a * b
    x, y = _split(a), _split(b)
    error = ((x[0] * y[0] - product) + x[0] * y[1] + x[1] * y[0]) + x[1] * y[1]
    total = product + c
    exact = total + (_sum_error(product, c, total) + error)
    return np.where(np.isfinite(exact), exact, total)


def add_to_odd(a: Value, b: Value) -> Value:
    """a + b of float64 rounded to odd: rounding it again, to 51 bits or fewer and in any direction,
    is as good as one rounding (Boldo and Melquiond 2008)."""
    total = a + b
    return to_odd(total, _sum_error(a, b, total))


def add_directed(a: Value, b: Value, ty: str, mode: str) -> Value:
    """a + b of float64, rounded once to ``ty`` (f32, f64): rz, rm (down) or rp (up)."""
    total = a + b
    if mode == "rm":  # a zero sum is negative, but for 0 + 0 (IEEE 754, 6.3)
        positive = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
        total = np.where((total == 0) & ~positive, _F64(-0.0), total)
    error = _sum_error(a, b, total)
    if ty == "f32":
        return narrow(to_odd(total, error), _F32, mode)
    towards = {"rz": np.copysign(0.0, total), "rm": -np.inf, "rp": np.inf}[mode]
    inward = np.nextafter(total, towards)
    moves = np.isfinite(total) & (error != 0) & ((error > 0) == (inward > total))
    return np.where(moves, inward, total)


def divide_approx(a: Value, b: Value) -> Value:
    """div.approx.f32 = a * (1 / b): the reciprocal of 2^126 < |b| < 2^128 counts as zero (ISA
    9.7.3.8), so the quotient is a zero of its sign, or NaN for an infinite a."""
    large = np.isfinite(b) & (np.abs(b) > _F32(2.0**126))
    return np.where(large, a * np.copysign(_F32(0), b), a / b)


def _split(x: Value) -> tuple[Value, Value]:
    scaled = x * _F64(134217729.0)  # 2^27 + 1
    high = scaled - (scaled - x)
    return high, x - high


def _sum_error(a: Value, b: Value, total: Value) -> Value:
    """What rounding took from a + b (Knuth)."""
    part = total - a
    return (a - (total - part)) + (b - part)


def to_odd(x: Value, error: Value) -> Value:
    """x moved by one unit to its odd neighbour in the direction of ``error``, where there is one:
    rounding it again to a narrower format is then right."""
    bits = x.view(_I64)
    inexact = (error != 0) & ((bits & 1) == 0) & np.isfinite(x)
    step = np.where((error > 0) == (x > 0), _I64(1), _I64(-1))
    return np.where(inexact, bits + step, bits).view(_F64)


def minimum(a: Value, b: Value, nan: bool = False) -> Value:
    """The smaller one; a NaN only where both are, or with ``nan`` where one is; -0 < +0."""
    out = np.minimum(a, b) if nan else np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), out)


def maximum(a: Value, b: Value, nan: bool = False) -> Value:
    out = np.maximum(a, b) if nan else np.fmax(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), b, a), out)


def rounded_integer(x: Value, mode: str) -> Value:
    """To an integral value: rni (to even), rzi, rmi (down), rpi (up)."""
    return {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[mode](x)


def float_to_int(x: Value, dtype: str, mode: str) -> Value:
    """Rounded and clamped to the range of ``dtype``. NaN gives 0, but where float64 or 64 bits are
    involved the highest bit alone (ISA, cvt)."""
    kind = np.dtype(dtype)
    info = np.iinfo(kind)
    whole = rounded_integer(x.astype(_F64), mode)
    top = float(info.max)
    out = np.clip(np.nan_to_num(whole, nan=0.0), float(info.min), np.nextafter(top, 0))
    result = out.astype(kind)
    result = np.where(whole >= top, kind.type(info.max), result)
    if kind.itemsize == 8 or x.dtype == _F64:
        highest = info.min if kind.kind == "i" else (info.max >> 1) + 1
        result = np.where(np.isnan(whole), kind.type(highest), result)
    return result


def narrow(x: Value, dtype: type, mode: str) -> Value:
    """To a narrower floating format with rounding rn, rz, rm (down) or rp (up). Integers of 64
    bits go to float32 in one rounding."""
    out = x.astype(dtype)
    if mode == "rn":
        return out
    if x.dtype.kind in "iu":
        back = out.astype(np.longdouble)
        exact = x.astype(np.longdouble)
    else:
        back, exact = out.astype(x.dtype), x
    up, down = np.nextafter(out, dtype(np.inf)), np.nextafter(out, dtype(-np.inf))
    if mode == "rp":
        return np.where(back < exact, up, out)
    if mode == "rm":
        return np.where(back > exact, down, out)
    return np.where(np.abs(back) > np.abs(exact), np.where(out > 0, down, up), out)


def to_f16(x: Value, mode: str = "rn") -> Value:
    """float16 of float32 or float64 values. A NaN becomes 0x7FFF: the ISA leaves its bits open, and
    this is what GPUs give."""
    return np.where(np.isnan(x), _NAN16, narrow(x, np.float16, mode))


def from_bf16(x: Value) -> Value:
    """float32 of the bits of a bfloat16 in uint16."""
    return (x.astype(_U32) << _U32(16)).view(_F32)


def to_bf16(x: Value, mode: str = "rn") -> Value:
    """The bits of the bfloat16, in uint16, of float32 or float64 values."""
    if x.dtype == _F64:
        narrowed = narrow(x, _F32, mode)
        x = to_odd32(narrowed, x - narrowed.astype(_F64)) if mode == "rn" else narrowed
    bits = x.view(_U32)
    add = _U32(0x7FFF) + ((bits >> _U32(16)) & _U32(1)) if mode == "rn" else _U32(0)
    out = (bits + add) >> _U32(16)
    return np.where(np.isnan(x), _U32(0x7FFF), out).astype(np.uint16)


def to_odd32(x: Value, error: Value) -> Value:
    """`to_odd` in float32."""
    bits = x.view(np.int32)
    inexact = (error != 0) & ((bits & 1) == 0) & np.isfinite(x)
    step = np.where((error > 0) == (x > 0), np.int32(1), np.int32(-1))
    return np.where(inexact, bits + step, bits).view(_F32)


def to_tf32(x: Value, mode: str = "rna") -> Value:
    """float32 with ten bits of fraction: to nearest with ties away (rna), to even (rn), or cut
    off (rz)."""
    bits = x.view(_U32)
    if mode == "rna":
        bits = bits + _U32(0x1000)
    elif mode == "rn":
        bits = bits + _U32(0xFFF) + ((bits >> _U32(13)) & _U32(1))
    return np.where(np.isfinite(x), bits & _U32(0xFFFFE000), x.view(_U32)).view(_F32)


def halves(x: Value, dtype: type) -> Value:
    """The two halves of packed 32-bit values, as ``dtype`` of shape (..., 2)."""
    return np.ascontiguousarray(np.asarray(x).reshape(-1, 1)).view(dtype)


def packed(x: Value, scalar: bool) -> Value:
    """The reverse of `halves`."""
    out = np.ascontiguousarray(x).view(_U32).reshape(-1)
    return out[0] if scalar else out
