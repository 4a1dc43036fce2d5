"""Instructions against plain formulas."""

from __future__ import annotations

import math
import struct
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof import emulate
from kernelproof.emulate import numeric as N
from kernelproof.emulate.semantics import TABLE
from kernelproof.errors import UnsupportedError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import ptx_microtests as micro

CASES = {case.name: case for case in micro.cases()}


def run(name: str) -> tuple[list[Any], Any]:
    case = CASES[name]
    arrays, _ = case.arrays()
    return arrays, micro.emulated(case)


def test_fma_rounds_once() -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal(2000).astype(np.float32) for _ in range(2))
    c = (-a * b).astype(np.float32)  # what is left is the product's own rounding error
    got = N.fma32(a, b, c)
    exact = np.multiply(a, b, dtype=np.float64) + c
    assert (got == exact.astype(np.float32)).all()
    # 1 + 2^-24 exactly midway, and a little more: two roundings would give 1.
    one = np.float32(1)
    tiny = np.array([2.0**-40], np.float32)
    assert N.fma32(np.array([one]), np.array([one + np.float32(2**-23)]), -tiny)[0] == 1 + 2**-23
    half = np.array([1 + 2.0**-12], np.float32)
    product = float(half[0]) ** 2
    assert N.fma32(half, half, tiny)[0] == np.float32(math.nextafter(product + 2**-40, 9))


def test_fma64_keeps_what_the_product_rounds_off() -> None:
    a = np.array([1 + 2.0**-30])
    assert N.fma64(a, a, -(a * a))[0] == 2.0**-60


def test_division_truncates_and_survives_zero() -> None:
    a = np.array([7, -7, 7, -7, 5, -(2**31)], np.int32)
    b = np.array([2, 2, -2, -2, 0, 3], np.int32)
    assert N.divide(a, b).tolist() == [3, -3, -3, 3, -1, -715827882]
    assert N.remainder(a, b).tolist() == [1, -1, 1, -1, -1, -2]


def test_high_products() -> None:
    random = np.random.default_rng(0)
    a, b = (random.integers(-(2**63), 2**63, 200) for _ in range(2))
    want = [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
    assert N.multiply_high(a, b).tolist() == want
    a, b = a.view(np.uint64), b.view(np.uint64)
    want = [int(x) * int(y) >> 64 for x, y in zip(a, b, strict=True)]
    assert N.multiply_high(a, b).tolist() == want


def test_bf16_rounds_to_even() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0x7FC00000], np.uint32)
    got = N.to_bf16(bits.view(np.float32))
    assert got.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x7FFF]


def test_conversion_to_integers_clamps() -> None:
    (x,), out = run("cvt.rzi.s32.f32")
    for value, got in zip(x.tolist(), out.view(np.int32).tolist(), strict=True):
        want = 0 if math.isnan(value) else max(-(2**31), min(2**31 - 1, value))
        assert got == math.trunc(want)


def test_dp4a() -> None:
    (a, b, c), out = run("dp4a.s32.s32")
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), out.tolist(), strict=True):
        left, right = (struct.unpack("4b", struct.pack("<I", n)) for n in (x, y))
        total = z + sum(p * q for p, q in zip(left, right, strict=True))
        assert got == total % 2**32


def test_prmt() -> None:
    (a, b, c), out = run("prmt.b32")
    for x, y, s, got in zip(a.tolist(), b.tolist(), c.tolist(), out.tolist(), strict=True):
        data = struct.pack("<II", x, y)
        parts = []
        for i in range(4):
            nibble = s >> 4 * i & 15
            byte = data[nibble & 7]
            parts.append((255 if byte & 128 else 0) if nibble & 8 else byte)
        assert got == int.from_bytes(bytes(parts), "little")


def test_mma_is_the_product_of_its_fragments() -> None:
    (a, b), out = run("mma.m16n8k16.f32.f16.f16")
    left, right = np.zeros((16, 16)), np.zeros((16, 8))
    values = a.view(np.float16).reshape(4, 32, 2), b.view(np.float16).reshape(2, 32, 2)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(4):
            for e in range(2):
                left[g + 8 * (i % 2), 8 * (i // 2) + 2 * t + e] = values[0][i, lane, e]
        for i in range(2):
            for e in range(2):
                right[8 * i + 2 * t + e, g] = values[1][i, lane, e]
    want, got = left @ right, out.reshape(4, 32)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for i in range(4):
            assert got[i, lane] == want[g + 8 * (i // 2), 2 * t + i % 2]


def test_the_table_has_the_instruction_of_every_micro_test() -> None:
    # That each runs is for test_h200 to see.
    for name in CASES:
        opcode = {"tensor": "cp", "registers": "mov"}.get(name.split(".")[0], name.split(".")[0])
        assert opcode in TABLE


def test_an_unknown_instruction_stops_with_name_and_line() -> None:
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry t() {\n brkpt;\n ret;\n}\n"
    )
    with pytest.raises(UnsupportedError, match=r"`brkpt` at PTX line 5 is not emulated"):
        emulate.launch(text, "t", 1, 32, [])


EXACT = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("form", ["add.{}.f32", "mul.{}.f32", "div.{}.f32", "fma.{}.f32",
                                  "add.{}.f64"])  # fmt: skip
def test_directed_rounding_gives_the_next_number_on_its_side(form: str, mode: str) -> None:
    kind = "d" if form.endswith("64") else "f"
    exact = EXACT[form[:3]]
    case = micro.elementwise(form.format(mode), kind * (4 if form.startswith("fma") else 3))
    arrays, _ = case.arrays()
    checked = 0
    for given, got in zip(zip(*arrays, strict=True), micro.emulated(case), strict=True):
        if not np.isfinite([*given, got]).all() or (given[1] == 0 and form.startswith("div")):
            continue
        want = exact(*(Fraction(float(x)) for x in given))
        up = mode == "rp" or (mode == "rz" and want < 0)
        with np.errstate(over="ignore"):
            before = np.nextafter(got, got.dtype.type(-np.inf if up else np.inf))
        assert Fraction(float(got)) == want or (Fraction(float(got)) > want) == up
        if np.isfinite(before):
            assert Fraction(float(before)) != want and (Fraction(float(before)) < want) == up
        checked += 1
    assert checked > 200


def test_directed_rounding_of_float64_beyond_sums_stops() -> None:
    with pytest.raises(UnsupportedError, match=r"div\.rz\.f64.*only \.rn"):
        micro.emulated(micro.elementwise("div.rz.f64", "ddd"))


def test_a_zero_sum_rounded_down_is_negative() -> None:
    a = np.array([1.5, -1.5, 0.0, 0.0, -0.0])
    b = np.array([-1.5, 1.5, 0.0, -0.0, -0.0])
    for ty in ("f32", "f64"):
        down, up = (np.signbit(N.add_directed(a, b, ty, mode)) for mode in ("rm", "rp"))
        assert down.tolist() == [True, True, False, True, True]
        assert up.tolist() == [False, False, False, False, True]


def test_half_precision_sums_are_rounded_once() -> None:
    # 2^-8 + 2^-16 lies midway between two bfloat16 if what is below float64's last bit is lost.
    tie, below = np.array([1 + 2.0**-8]), np.array([2.0**-80])
    assert N.to_bf16(N.add_to_odd(tie, below)).tolist() == [0x3F81]
    assert N.to_bf16(N.add_to_odd(tie, -below)).tolist() == [0x3F80]


def test_bfe_past_the_end_continues_the_sign() -> None:
    x = np.array([-(2**31), 2**31 - 1, -(2**31), 0x0F00], np.int32)
    start, length = np.array([28, 28, 200, 8], np.uint32), np.array([8, 8, 3, 4], np.uint32)
    assert N.extract_bits(x, start, length).tolist() == [-8, 7, -1, -1]
    assert N.extract_bits(x, start, np.zeros(4, np.uint32)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(("dtype", "want"), [("i4", -(2**31)), ("u4", 2**31), ("u8", 2**63)])
def test_nan_of_float64_to_integers_is_the_highest_bit(dtype: str, want: int) -> None:
    assert N.float_to_int(np.array([np.nan]), dtype, "rzi").tolist() == [want]


def test_division_by_a_huge_number_is_zero_where_it_is_approximate() -> None:
    a = np.array([1, -1, np.inf, 1, 1], np.float32)
    b = np.array([2e38, 2e38, 2e38, 2.0**126, np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        got = N.divide_approx(a, b)
    assert got[0] == got[1] == 0 and np.signbit(got).tolist()[:2] == [False, True]
    assert np.isnan(got[2]) and got[3] == 2.0**-126 and got[4] == 0
