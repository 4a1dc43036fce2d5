"""Instructions against plain formulas, and against what a GPU gave where that is recorded."""

from __future__ import annotations

import importlib.util
import json
import math
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC compiles the kernels")

from kernelproof import emulate
from kernelproof.emulate import numeric as N
from kernelproof.emulate.semantics import TABLE
from kernelproof.errors import UnsupportedError

ROOT = Path(__file__).parents[2]
RECORDED = sorted((Path(__file__).parent / "fixtures").glob("*.json"))


def _microtests() -> Any:
    path = ROOT / "benchmarks" / "ptx_microtests.py"
    spec = importlib.util.spec_from_file_location("ptx_microtests", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ptx_microtests"] = module
    spec.loader.exec_module(module)
    return module


MICRO = _microtests()
CASES = {case.name: case for case in MICRO.cases()}


@pytest.mark.parametrize(("name", "path"), [(n, p) for p in RECORDED for n in CASES])
def test_an_instruction_gives_what_the_gpu_gave(name: str, path: Path) -> None:
    stored = json.loads(path.read_text())["outputs"]
    case = CASES[name]
    want = MICRO.decoded(stored[name], case.dtype)
    assert MICRO.distance(case, MICRO.emulated(case), want) <= case.ulp


def run(name: str) -> tuple[list[Any], Any]:
    case = CASES[name]
    arrays, _ = case.arrays()
    return arrays, MICRO.emulated(case)


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
    assert N.remainder(a, b).tolist() == [1, -1, 1, -1, 5, -2]


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


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("mma.m16n8k16.f32.f16")])
def test_mma_is_the_product_of_its_fragments(name: str) -> None:
    (a, b), out = run(name)
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


def test_every_micro_test_runs_and_the_table_has_its_instruction() -> None:
    for name, case in CASES.items():
        assert name.split(".")[0] in TABLE
        assert MICRO.emulated(case).shape == (case.count,)


def test_an_unknown_instruction_stops_with_name_and_line() -> None:
    text = (
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry t() {\n brkpt;\n ret;\n}\n"
    )
    with pytest.raises(UnsupportedError, match=r"`brkpt` at PTX line 5 is not emulated"):
        emulate.launch(text, "t", 1, 32, [])
